// RUN: shapejit-opt %s --verify-diagnostics --shapejit-merge-products=max-bytes=-1

// expected-error @below {{max-bytes must not be negative, got -1}}
module {}
