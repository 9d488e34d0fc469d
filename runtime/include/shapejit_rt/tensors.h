// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether tensors of torch are where they were: a part of the C interface of libshapejit_rt.so.
//
// A program looks at all of its weights in every call. Asking torch costs a call of Python for each
// of them, and the memory that these touch is cold by then. Here the few words that say it are read
// directly. Where they lie is found out, and verified, by `shapejit.tensor_layout`; this library
// knows nothing of torch.

#ifndef SHAPEJIT_RT_TENSORS_H
#define SHAPEJIT_RT_TENSORS_H

#include "shapejit_rt/api.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Where words lie, in bytes from the beginning of what they are part of.
struct ShapejitRtTensorLayout {
  int64_t body;    ///< in the Python object: the address of the tensor's body
  int64_t storage; ///< in the body: the address of its storage
  int64_t start;   ///< in the body: the first element in the storage
  int64_t counter; ///< in the body: the address of the counter of its versions
  int64_t data;    ///< in the storage: the address of its memory
  int64_t version; ///< in the counter, 4 bytes
};

/// What was found of a tensor.
struct ShapejitRtTensorState {
  const void *object; ///< the Python object, which lives
  const void *body;
  const void *storage;
  const void *data;
  int64_t start;
  const void *counter; ///< null: its version does not matter
  int64_t version;
};

/// Reads the state of tensors, of which `object` is given, and `counter` if the version is to be
/// read. The caller keeps others from changing them.
SHAPEJIT_RT_API void shapejitRtTensorsRead(const struct ShapejitRtTensorLayout *layout,
                                           struct ShapejitRtTensorState *states, int64_t count);

/// Whether the state of a tensor is another one than that was read. The caller keeps others from
/// changing them meanwhile.
SHAPEJIT_RT_API int32_t shapejitRtTensorsChanged(const struct ShapejitRtTensorLayout *layout,
                                                 const struct ShapejitRtTensorState *states,
                                                 int64_t count);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // SHAPEJIT_RT_TENSORS_H
