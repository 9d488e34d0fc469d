// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The body of a parallel region as MLIR outlines it.

#ifndef SHAPEJIT_RT_MICROTASK_H
#define SHAPEJIT_RT_MICROTASK_H

#include <cstdint>

namespace shapejit::rt {

/// Its arguments: the thread's number twice, by address, then the captured values' addresses.
using Microtask = void (*)(int32_t *, int32_t *, ...);

/// A microtask and what it is called with.
struct Task {
  /// `arguments` must have room for this many, even when `count` is less.
  static constexpr int32_t kRegisters = 4;

  Microtask function = nullptr;
  int32_t count = 0;
  void *const *arguments = nullptr;

  void operator()(int32_t thread) const;
};

} // namespace shapejit::rt

#endif // SHAPEJIT_RT_MICROTASK_H
