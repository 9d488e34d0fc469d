// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "shapejit_rt/threads.h"

#include "Pool.h"

#include <algorithm>

using namespace shapejit::rt;

void shapejitRtRun(ShapejitRtEntry entry, const int64_t *symbols, void **buffers, void *arena,
                   int32_t threads) {
  int32_t previous = threadState.threads;
  shapejitRtSetThreads(threads);
  entry(symbols, buffers, arena);
  threadState.threads = previous;
}

void shapejitRtSetThreads(int32_t threads) {
  threadState.threads = std::clamp(threads, 1, Pool::kMaxThreads);
}

int32_t shapejitRtThreads(void) { return threadState.current ? 1 : threadState.threads; }

int32_t shapejitRtWorkers(void) { return pool.workers(); }
