// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_RT_CUDA_ARRAY_H
#define SHAPEJIT_RT_CUDA_ARRAY_H

#include "Error.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace shapejit::rt::cuda {

/// A growing array of plain values. That there is no memory is a failure, not an exception.
template <typename T> class Array {
  static_assert(std::is_trivially_copyable<T>::value, "items are moved by realloc");
  static_assert(alignof(T) <= alignof(std::max_align_t), "items are aligned by malloc");

public:
  Array() = default;
  ~Array() { std::free(items); }
  Array(const Array &) = delete;
  Array &operator=(const Array &) = delete;

  Status append(const T &item) {
    if (count == room) {
      int32_t wanted = room ? 2 * room : 8;
      void *grown = std::realloc(items, sizeof(T) * static_cast<size_t>(wanted));
      if (!grown)
        return fail(ShapejitRtCudaDriverFailed, "no memory for %d records of a program", wanted);
      items = static_cast<T *>(grown);
      room = wanted;
    }
    items[count++] = item;
    return ShapejitRtCudaOk;
  }

  void swap(Array &other) {
    std::swap(items, other.items);
    std::swap(count, other.count);
    std::swap(room, other.room);
  }

  int32_t size() const { return count; }
  T *data() { return items; }
  const T *data() const { return items; }
  T &operator[](int32_t index) { return items[index]; }
  const T &operator[](int32_t index) const { return items[index]; }
  T *begin() { return items; }
  T *end() { return items + count; }
  const T *begin() const { return items; }
  const T *end() const { return items + count; }

private:
  T *items = nullptr;
  int32_t count = 0;
  int32_t room = 0;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_ARRAY_H
