// RUN: shapejit-opt %s --verify-diagnostics --shapejit-lower-to-cpu=vector-bytes=48

// expected-error @below {{vector-bytes must be 16, 32 or 64, got 48}}
module {}
