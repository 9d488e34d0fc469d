// RUN: not shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=on" 2>&1 | FileCheck %s --check-prefixes=MODE
// RUN: not shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="max-rel-error=-1" 2>&1 | FileCheck %s --check-prefixes=ERROR

// MODE: error: winograd must be one of auto, off, force, got 'on'
// ERROR: error: max-rel-error must be a number from 0 on, got '-1'
module {}
