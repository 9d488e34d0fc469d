// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Symbols.

// expected-error @below {{unknown field 'step'; a symbol has id, min, max, divisor, opt, equal_to}}
shapejit.symbol @n {id = 0, step = 2}

// -----

// expected-error @below {{field 'min' is given twice}}
shapejit.symbol @n {id = 0, min = 1, min = 2}

// -----

// expected-error @below {{a symbol needs an id}}
shapejit.symbol @n {min = 1}

// -----

// expected-error @below {{has id 256, expected 0..255}}
shapejit.symbol @n {id = 256}

// -----

// expected-error @below {{has id -1, expected 0..255}}
shapejit.symbol @n {id = -1}

// -----

// expected-error @below {{has min -1; sizes are not negative}}
shapejit.symbol @n {id = 0, min = -1}

// -----

// expected-error @below {{has the empty range [4, 3]}}
shapejit.symbol @n {id = 0, min = 4, max = 3}

// -----

// expected-error @below {{has the empty range [0, -1]}}
shapejit.symbol @n {id = 0, max = -1}

// -----

// expected-error @below {{has divisor 0, expected at least 1}}
shapejit.symbol @n {id = 0, divisor = 0}

// -----

// expected-error @below {{has no multiple of its divisor 8 in [9, 15]}}
shapejit.symbol @n {id = 0, min = 9, max = 15, divisor = 8}

// -----

// expected-error @below {{has opt 0, which is not a legal value of it}}
shapejit.symbol @n {id = 0, min = 1, opt = 0}

// -----

// expected-error @below {{has opt 65, which is not a legal value of it}}
shapejit.symbol @n {id = 0, min = 1, max = 64, opt = 65}

// -----

// expected-error @below {{has opt 12, which is not a legal value of it}}
shapejit.symbol @n {id = 0, max = 64, divisor = 8, opt = 12}

// -----

// expected-error @below {{is equal to s1; a symbol is merged into one with a smaller id than its own, 1}}
shapejit.symbol @n {id = 1, equal_to = 1}

// -----

// expected-error @below {{needs both `derived` and `arguments`, or neither}}
"shapejit.symbol"() {sym_name = "n", id = 1 : i64, derived = "max"} : () -> ()

// -----

// expected-error @below {{is derived by 'gcd', expected max, min, floordiv, ceildiv or mod}}
shapejit.symbol @n {id = 1} = gcd(s0, 4)

// -----

// expected-error @below {{is derived from 1 expressions, expected 2}}
shapejit.symbol @n {id = 1} = max(s0)

// -----

// expected-error @below {{is derived from s1; only symbols with a smaller id than its own, 1, are known by then}}
shapejit.symbol @n {id = 1} = max(s1 - 1, 0)

// -----

func.func @nested() {
  // expected-error @below {{expects parent op 'builtin.module'}}
  shapejit.symbol @n {id = 0}
  return
}

// -----

// Two symbols of one name.

// expected-note @below {{see existing symbol definition here}}
shapejit.symbol @n {id = 0}
// expected-error @below {{redefinition of symbol named 'n'}}
shapejit.symbol @n {id = 1}

// -----

// Constraints and sizes.

// expected-error @below {{relates symbols only, but its set has 1 dimensions}}
shapejit.constraint affine_set<(d0)[s0] : (d0 - s0 >= 0)>

// -----

func.func @dims_in_size() -> index {
  // expected-error @below {{needs a map of symbols to one expression, got (d0)[s0] -> (d0 + s0)}}
  %0 = shapejit.size affine_map<(d0)[s0] -> (d0 + s0)>
  return %0 : index
}

// -----

func.func @two_sizes() -> index {
  // expected-error @below {{needs a map of symbols to one expression, got ()[s0] -> (s0, 1)}}
  %0 = shapejit.size affine_map<()[s0] -> (s0, 1)>
  return %0 : index
}

// -----

// Shapes and buffers.

// expected-error @below {{size 0 is negative: -1}}
#negative = #shapejit.shape<[-1]>

// -----

// expected-error @below {{use of undeclared identifier}}
#dims = #shapejit.shape<[d0]>

// -----

// expected-error @below {{symbolic shape has rank 1 but the tensor has rank 2}}
func.func private @rank(tensor<?x8xf32, #shapejit.shape<[s0]>>)

// -----

// expected-error @below {{dimension 1 is 8 but its symbolic size is 9}}
func.func private @static(tensor<?x8xf32, #shapejit.shape<[s0, 9]>>)

// -----

// expected-error @below {{dimension 0 is dynamic but its symbolic size is 4}}
func.func private @dynamic(tensor<?xf32, #shapejit.shape<[4]>>)

// -----

// expected-error @below {{dimension 0 is 4 but its symbolic size is s0; a size that is not constant needs a dynamic dimension}}
func.func private @symbolic(tensor<4xf32, #shapejit.shape<[s0]>>)

// -----

// expected-error @below {{a buffer is in `arena`, `output` or `input`, got `stack`}}
#space = #shapejit.buffer<stack 0>

// -----

// expected-error @below {{buffer index must not be negative, got -1}}
#index = #shapejit.buffer<arena -1>
