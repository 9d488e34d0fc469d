// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "shapejit_rt/tensors.h"

#include <cstring>

namespace {

template <typename T> T load(const void *base, int64_t offset) {
  T value;
  memcpy(&value, static_cast<const char *>(base) + offset, sizeof(T));
  return value;
}

bool differs(const ShapejitRtTensorLayout &layout, const ShapejitRtTensorState &state) {
  // What one word says decides whether the next may be read: a body or storage that is another one
  // is not looked into.
  const void *body = load<const void *>(state.object, layout.body);
  if (body != state.body || load<const void *>(body, layout.storage) != state.storage ||
      load<int64_t>(body, layout.start) != state.start ||
      load<const void *>(state.storage, layout.data) != state.data)
    return true;
  return state.counter && (load<const void *>(body, layout.counter) != state.counter ||
                           load<uint32_t>(state.counter, layout.version) != state.version);
}

} // namespace

void shapejitRtTensorsRead(const ShapejitRtTensorLayout *layout, ShapejitRtTensorState *states,
                           int64_t count) {
  for (ShapejitRtTensorState *state = states; state != states + count; ++state) {
    state->body = load<const void *>(state->object, layout->body);
    state->storage = load<const void *>(state->body, layout->storage);
    state->start = load<int64_t>(state->body, layout->start);
    state->data = load<const void *>(state->storage, layout->data);
    if (!state->counter)
      continue;
    state->counter = load<const void *>(state->body, layout->counter);
    state->version = load<uint32_t>(state->counter, layout->version);
  }
}

int32_t shapejitRtTensorsChanged(const ShapejitRtTensorLayout *layout,
                                 const ShapejitRtTensorState *states, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (differs(*layout, states[i]))
      return 1;
  return 0;
}
