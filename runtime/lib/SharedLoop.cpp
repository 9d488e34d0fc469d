// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "SharedLoop.h"

#include "Wait.h"

#include <algorithm>
#include <sched.h>

using namespace shapejit::rt;

// Members rarely wait here: for the few stores of a set-up, or, if they ran ahead over several
// loops without a barrier, for the slowest one. After this time they let other threads run.
static constexpr int64_t kSpinNanoseconds = 20'000;

void SharedLoop::reset() {
  turn.store(0, std::memory_order_relaxed);
  finished.store(0, std::memory_order_relaxed);
}

void SharedLoop::enter(uint32_t use, uint32_t members, const Partition &requested) {
  const uint32_t ready = 2 * (use + 1);
  Spin spin(kSpinNanoseconds);
  for (;;) {
    uint32_t seen = turn.load(std::memory_order_acquire);
    if (seen == ready)
      return;
    bool isFree =
        seen == ready - 2 && (use == 0 || finished.load(std::memory_order_acquire) == members);
    if (isFree && turn.compare_exchange_strong(seen, ready - 1, std::memory_order_acquire)) {
      partition = requested;
      cursor.store(0, std::memory_order_relaxed);
      finished.store(0, std::memory_order_relaxed);
      turn.store(ready, std::memory_order_release);
      return;
    }
    if (!spin.again())
      sched_yield();
  }
}

bool SharedLoop::next(Chunk &chunk, uint32_t threads) {
  if (partition.kind == Partition::Guided) {
    if (nextGuided(chunk, threads))
      return true;
  } else {
    // Tickets count chunks, so that the counter cannot wrap, however large chunks are.
    uint64_t size = partition.chunk;
    uint64_t chunks = partition.iterations / size + (partition.iterations % size != 0);
    uint64_t ticket = cursor.fetch_add(1, std::memory_order_relaxed);
    if (ticket < chunks) {
      chunk.first = ticket * size;
      chunk.size = std::min(size, partition.iterations - chunk.first);
      return true;
    }
  }
  finished.fetch_add(1, std::memory_order_release);
  return false;
}

bool SharedLoop::nextGuided(Chunk &chunk, uint32_t threads) {
  uint64_t first = cursor.load(std::memory_order_relaxed);
  while (first < partition.iterations) {
    uint64_t left = partition.iterations - first;
    uint64_t size = std::min(left, std::max(partition.chunk, left / (2 * uint64_t(threads))));
    if (cursor.compare_exchange_weak(first, first + size, std::memory_order_relaxed)) {
      chunk = {first, size};
      return true;
    }
  }
  return false;
}
