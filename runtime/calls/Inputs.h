// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_CALLS_INPUTS_H
#define SHAPEJIT_CALLS_INPUTS_H

#include "Tensors.h"

namespace shapejit::calls {

/// Makes the types `Sizes` and `Inputs`, and adds them to the module; 0, or -1 with an exception.
int addInputTypes(PyObject *module);

} // namespace shapejit::calls

#endif // SHAPEJIT_CALLS_INPUTS_H
