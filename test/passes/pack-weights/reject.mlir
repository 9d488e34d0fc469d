// RUN: shapejit-opt %s --verify-diagnostics --shapejit-pack-weights=panel=0

// expected-error @below {{panel must be at least 1, got 0}}
module {}
