// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-hoist-weights=growth=-1
// RUN: not shapejit-opt %s --shapejit-hoist-weights=slack=-4 2>&1 | FileCheck %s

// CHECK: slack must not be negative, got -4

// expected-error @below {{growth must not be negative, got -1}}
module {}
