// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Threads of compiled CPU programs: the C interface of libshapejit_rt.so.
//
// Compiled kernels mark their parallel loops with OpenMP's calls (`__kmpc_fork_call` and its kin).
// This library implements the ones that MLIR emits, on a pool of its own. None of them is exported:
// shapejitRtSymbols() gives their addresses, to be defined in the JIT, so that a process may hold
// any other OpenMP runtime beside this one.
//
// Every function may be called from any thread at any time. Nothing here throws or blocks.

#ifndef SHAPEJIT_RT_THREADS_H
#define SHAPEJIT_RT_THREADS_H

#include "shapejit_rt/api.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A function that compiled code calls by name.
struct ShapejitRtSymbol {
  const char *name;
  void *address;
};

/// The functions for compiled code. `count` receives their number; the table lives as long as the
/// process.
SHAPEJIT_RT_API const struct ShapejitRtSymbol *shapejitRtSymbols(size_t *count);

/// Entry point of a compiled program: symbols, buffers, arena.
typedef void (*ShapejitRtEntry)(const int64_t *, void **, void *);

/// Calls `entry(symbols, buffers, arena)`. Its parallel loops use at most `threads` threads, the
/// calling one included; a value under 1 counts as 1. The setting of the calling thread is as
/// before afterwards.
SHAPEJIT_RT_API void shapejitRtRun(ShapejitRtEntry entry, const int64_t *symbols, void **buffers,
                                   void *arena, int32_t threads);

/// Sets the most threads that parallel loops started by the calling thread use, 1 at first. Loops
/// that run already keep theirs.
SHAPEJIT_RT_API void shapejitRtSetThreads(int32_t threads);

/// The most threads that a parallel loop would use if the calling thread started one now: its
/// setting, or 1 inside of a parallel loop. Compiled code may call it, to choose the size of
/// chunks.
SHAPEJIT_RT_API int32_t shapejitRtThreads(void);

/// Worker threads of this process, asleep or not: one less than the largest number of threads that
/// a parallel loop asked for so far. A child made by fork() starts with none.
SHAPEJIT_RT_API int32_t shapejitRtWorkers(void);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // SHAPEJIT_RT_THREADS_H
