// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The runtime's OpenMP entry points, called in the way of the code that MLIR emits.

#ifndef SHAPEJIT_RT_TEST_KMPC_H
#define SHAPEJIT_RT_TEST_KMPC_H

#include "Check.h"

#include "shapejit_rt/threads.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kmpc {

enum Schedule : int32_t {
  StaticChunked = 33,
  Static = 34,
  Dynamic = 35 | 1 << 30, // nonmonotonic, as MLIR says
  Guided = 36 | 1 << 30,
};

template <typename Signature> Signature *symbol(const char *name) {
  size_t count;
  const ShapejitRtSymbol *symbols = shapejitRtSymbols(&count);
  for (size_t i = 0; i < count; ++i)
    if (std::strcmp(symbols[i].name, name) == 0)
      return reinterpret_cast<Signature *>(symbols[i].address);
  std::fprintf(stderr, "no symbol %s\n", name);
  std::abort();
}

using Microtask = void(int32_t *, int32_t *, ...);

inline auto *const forkCall = symbol<void(void *, int32_t, Microtask *, ...)>("__kmpc_fork_call");
inline auto *const forkCallIf =
    symbol<void(void *, int32_t, Microtask *, int32_t, void *)>("__kmpc_fork_call_if");
inline auto *const globalThreadNum = symbol<int32_t(void *)>("__kmpc_global_thread_num");
inline auto *const pushNumThreads =
    symbol<void(void *, int32_t, int32_t)>("__kmpc_push_num_threads");
inline auto *const barrierCall = symbol<void(void *, int32_t)>("__kmpc_barrier");
inline auto *const staticInit =
    symbol<void(void *, int32_t, int32_t, int32_t *, uint64_t *, uint64_t *, uint64_t *, uint64_t,
                uint64_t)>("__kmpc_for_static_init_8u");
inline auto *const staticFini = symbol<void(void *, int32_t)>("__kmpc_for_static_fini");
inline auto *const dispatchInit =
    symbol<void(void *, int32_t, int32_t, uint64_t, uint64_t, uint64_t, uint64_t)>(
        "__kmpc_dispatch_init_8u");
inline auto *const dispatchNext =
    symbol<int32_t(void *, int32_t, int32_t *, uint64_t *, uint64_t *, uint64_t *)>(
        "__kmpc_dispatch_next_8u");
inline auto *const reduceCall =
    symbol<int32_t(void *, int32_t, int32_t, size_t, void *, void (*)(void *, void *), void *)>(
        "__kmpc_reduce");
inline auto *const endReduce = symbol<void(void *, int32_t, void *)>("__kmpc_end_reduce");

inline int32_t threadNum() { return globalThreadNum(nullptr); }
inline void barrier() { barrierCall(nullptr, threadNum()); }

template <typename Body> void outlined(int32_t *, int32_t *, Body *body) { (*body)(); }

template <typename Body> Microtask *microtask(Body &) {
  return reinterpret_cast<Microtask *>(&outlined<Body>);
}

/// omp.parallel
template <typename Body> void parallel(Body body) { forkCall(nullptr, 1, microtask(body), &body); }

/// omp.parallel if(condition)
template <typename Body> void parallelIf(bool condition, Body body) {
  forkCallIf(nullptr, 1, microtask(body), condition ? -1 : 0, &body);
}

/// omp.wsloop schedule(dynamic or guided) nowait
template <typename Body>
void dynamicLoop(uint64_t count, uint64_t chunk, Body body, Schedule schedule = Dynamic) {
  dispatchInit(nullptr, threadNum(), schedule, 1, count, 1, chunk);
  int32_t last;
  uint64_t lower, upper, stride;
  while (dispatchNext(nullptr, threadNum(), &last, &lower, &upper, &stride))
    for (uint64_t i = lower - 1; i < upper; ++i)
      body(i);
}

/// omp.wsloop schedule(static) nowait
template <typename Body> void staticLoop(uint64_t count, Body body) {
  int32_t last = 0;
  uint64_t lower = 0, upper = count - 1, stride = 1;
  staticInit(nullptr, threadNum(), Static, &last, &lower, &upper, &stride, 1, 0);
  for (uint64_t i = 0, size = upper - lower + 1; i < size; ++i)
    body(lower + i);
  staticFini(nullptr, threadNum());
}

/// omp.wsloop schedule(static, chunk) nowait
template <typename Body> void staticLoop(uint64_t count, uint64_t chunk, Body body) {
  int32_t last = 0;
  uint64_t lower = 0, upper = count ? count - 1 : 0, stride = 1;
  staticInit(nullptr, threadNum(), StaticChunked, &last, &lower, &upper, &stride, 1, chunk);
  uint64_t size = upper + 1 - lower;
  for (uint64_t first = lower; first < count; first += stride)
    for (uint64_t i = first; i < first + size && i < count; ++i)
      body(i);
  staticFini(nullptr, threadNum());
}

} // namespace kmpc

#endif // SHAPEJIT_RT_TEST_KMPC_H
