// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-add-gpu-head=words=100

// expected-error@+1 {{this module has 100 words; head kernels have 32, 128, 512, 2048}}
module {
}

// -----

// An architecture without kernels.
// expected-error@+1 {{this module has the target "cuda:sm_80"}}
module attributes {shapejit.target = "cuda:sm_80"} {
}
