// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures: a status that functions return, and a text that the thread keeps.

#ifndef SHAPEJIT_RT_CUDA_ERROR_H
#define SHAPEJIT_RT_CUDA_ERROR_H

#include "shapejit_rt/cuda.h"

#include "Abi.h"

namespace shapejit::rt::cuda {

/// Zero means that all is well.
using Status = int32_t;

/// Sets the thread's text, and returns the status.
Status fail(Status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/// The same for a call of the driver that failed: the text names the function and says what its
/// result means, and what can be done where that is known.
Status failDriver(const char *function, abi::Result result);

/// Adds to the thread's text, as far as there is room.
void addToError(const char *format, ...) __attribute__((format(printf, 1, 2)));

/// The thread's text.
const char *errorText();

/// Returns the status of an expression if it failed.
#define SHAPEJIT_TRY(expression)                                                                   \
  do {                                                                                             \
    if (Status status_ = (expression))                                                             \
      return status_;                                                                              \
  } while (false)

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_ERROR_H
