// RUN: shapejit-opt %s --verify-diagnostics --shapejit-lower-to-cpu=vector-bytes=48 --split-input-file
// RUN: not shapejit-opt %s --shapejit-lower-to-cpu=chunk-cost=0 2>&1 | FileCheck %s

// CHECK: chunk-cost must be at least 1, got 0

// expected-error @below {{vector-bytes must be 16, 32 or 64, got 48}}
module {}
