// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Team.h"

#include "Wait.h"

#include <immintrin.h>

using namespace shapejit::rt;

// Waits for members that run: their work is cut small, so they are done soon, unless they lost
// their core. Then the waiting thread leaves its own.
static constexpr int64_t kMemberNanoseconds = 50'000;
// Waits for workers to join a static schedule: one that is awake needs less than a microsecond.
static constexpr int64_t kAssembleNanoseconds = 10'000;

__thread ThreadState shapejit::rt::threadState;

// Rounding and the handling of denormals, without the sticky exception flags.
static uint32_t floatingPointControl() { return _mm_getcsr() & ~uint32_t(_MM_EXCEPT_MASK); }

void Team::open(const Task &newTask, uint32_t workers) {
  task = newTask;
  size = workers + 1;
  floatControl = floatingPointControl();
  present.store(0, std::memory_order_relaxed);
  for (SharedLoop &loop : loops)
    loop.reset();
  door.store(kOpen | workers * kPlace, std::memory_order_release);
}

bool Team::isOpen() const {
  uint64_t seen = door.load(std::memory_order_relaxed);
  return (seen & kOpen) && places(seen) != 0;
}

uint32_t Team::wantedWorkers() const {
  uint64_t seen = door.load(std::memory_order_relaxed);
  return joined(seen) + (seen & kOpen ? places(seen) : 0);
}

bool Team::tryJoin(int32_t &thread) {
  uint64_t seen = door.load(std::memory_order_relaxed);
  while ((seen & kOpen) && places(seen) != 0) {
    if (door.compare_exchange_weak(seen, seen - kPlace + kJoined, std::memory_order_acquire,
                                   std::memory_order_relaxed)) {
      thread = joined(seen) + 1;
      return true;
    }
  }
  return false;
}

void Team::runAsWorker(int32_t thread) {
  if (floatingPointControl() != floatControl)
    _mm_setcsr(floatControl);
  Member member;
  member.team = this;
  member.thread = thread;
  {
    EnterRegion region(threadState, member);
    task(thread);
  }
  leave();
}

void Team::leave() {
  // Before the starter announced how many joined, the count is not above 0.
  if (present.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
      starterSleeps.load(std::memory_order_seq_cst) != 0)
    futexWake(present);
}

void Team::finish() {
  int32_t workers = close() - 1;
  if (workers == 0 || present.fetch_add(workers, std::memory_order_acq_rel) + workers == 0)
    return;
  Spin spin(kMemberNanoseconds);
  while (present.load(std::memory_order_acquire) != 0) {
    if (spin.again())
      continue;
    starterSleeps.store(1, std::memory_order_seq_cst);
    while (int32_t left = present.load(std::memory_order_seq_cst))
      futexWait(present, left);
    starterSleeps.store(0, std::memory_order_relaxed);
    return;
  }
}

uint32_t Team::close() {
  uint64_t seen = door.load(std::memory_order_acquire);
  if (seen & kOpen)
    seen = door.fetch_and(~kOpen, std::memory_order_acq_rel);
  return joined(seen) + 1;
}

uint32_t Team::assemble() {
  Spin spin(kAssembleNanoseconds);
  while (isOpen() && spin.again()) {
  }
  return close();
}

void Team::barrier() {
  uint32_t members = close();
  if (members == 1)
    return;
  uint32_t number = barriers.load(std::memory_order_acquire);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    arrived.store(0, std::memory_order_relaxed);
    barriers.store(number + 1, std::memory_order_seq_cst);
    if (barrierSleepers.load(std::memory_order_seq_cst) != 0)
      futexWake(barriers);
    return;
  }
  Spin spin(kMemberNanoseconds);
  while (barriers.load(std::memory_order_acquire) == number) {
    if (spin.again())
      continue;
    barrierSleepers.fetch_add(1, std::memory_order_seq_cst);
    while (barriers.load(std::memory_order_seq_cst) == number)
      futexWait(barriers, number);
    barrierSleepers.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

void Team::lock() {
  uint32_t state = 0;
  if (lockState.compare_exchange_strong(state, 1, std::memory_order_acquire))
    return;
  while (lockState.exchange(2, std::memory_order_acquire) != 0)
    futexWait(lockState, 2u);
}

void Team::unlock() {
  if (lockState.exchange(0, std::memory_order_release) == 2)
    futexWake(lockState, 1);
}

SharedLoop &Team::enterLoop(uint32_t index, const Partition &partition) {
  // An object is used again only after all members left it, so their number must be final.
  uint32_t use = index / kLoops;
  uint32_t members = use == 0 ? 0 : close();
  SharedLoop &loop = loops[index % kLoops];
  loop.enter(use, members, partition);
  return loop;
}

void Team::abandon() {
  door.store(0, std::memory_order_relaxed);
  present.store(0, std::memory_order_relaxed);
  starterSleeps.store(0, std::memory_order_relaxed);
  arrived.store(0, std::memory_order_relaxed);
  barrierSleepers.store(0, std::memory_order_relaxed);
  lockState.store(0, std::memory_order_relaxed);
}
