// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The threads that run one parallel region together.
//
// The thread that starts a region runs it at once. Workers join while they come, as long as the
// region is open to them, and share what is left. So the starter never waits for a worker that has
// not joined: one that is asleep, or whose core is busy elsewhere, costs nothing. What depends on
// the number of members (a barrier, a static schedule) closes the team first, which makes the
// number final; the end of the region does so too.

#ifndef SHAPEJIT_RT_TEAM_H
#define SHAPEJIT_RT_TEAM_H

#include "Microtask.h"
#include "SharedLoop.h"

#include <atomic>
#include <cstdint>

namespace shapejit::rt {

/// Teams live for ever and serve one region after the other. So a worker may look at one at any
/// time, and joins it only if it is open, whichever region it serves by then.
class Team {
public:
  /// Loops that fast members can be ahead of slow ones.
  static constexpr uint32_t kLoops = 4;

  /// Starts a region for the calling thread and at most `workers` others.
  void open(const Task &task, uint32_t workers);

  /// Whether a worker could join now.
  bool isOpen() const;

  /// Workers that joined, and those that may still.
  uint32_t wantedWorkers() const;

  /// Makes the calling thread a member, if there is room: its number is then in `thread`.
  bool tryJoin(int32_t &thread);

  /// Runs the region as a worker that joined, and leaves the team.
  void runAsWorker(int32_t thread);

  /// Ends the region as the thread that opened it: waits until all workers left.
  void finish();

  /// Lets no one join any more, and returns the number of members.
  uint32_t close();

  /// Waits shortly for workers to join, then closes; returns the number of members.
  uint32_t assemble();

  /// Waits for all members; closes the team.
  void barrier();

  /// Mutual exclusion of the members.
  void lock();
  void unlock();

  /// The most members that the team can have.
  uint32_t capacity() const { return size; }

  /// Loop number `index` of the region, entered by the calling member.
  SharedLoop &enterLoop(uint32_t index, const Partition &partition);

  /// Forgets a region whose threads are gone, in the child of a fork.
  void abandon();

private:
  // Workers that joined, in the low half; how many more may join, above; then whether any may.
  static constexpr uint64_t kJoined = 1;
  static constexpr uint64_t kPlace = UINT64_C(1) << 16;
  static constexpr uint64_t kOpen = UINT64_C(1) << 32;

  static uint32_t joined(uint64_t door) { return door & 0xffff; }
  static uint32_t places(uint64_t door) { return door >> 16 & 0xffff; }

  void leave();

  alignas(64) std::atomic<uint64_t> door{0};
  Task task;
  uint32_t size = 0;
  uint32_t floatControl = 0;

  /// Workers that joined less those that left. Joins are added when the region ends, all at once.
  alignas(64) std::atomic<int32_t> present{0};
  std::atomic<uint32_t> starterSleeps{0};

  alignas(64) std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> barriers{0};
  std::atomic<uint32_t> barrierSleepers{0};

  /// 0 free, 1 locked, 2 locked and others may sleep.
  std::atomic<uint32_t> lockState{0};

  alignas(64) SharedLoop loops[kLoops];
};

/// The part of one thread in a region. Without a team it is a region that one thread runs alone.
struct Member {
  Team *team = nullptr;
  int32_t thread = 0;
  uint32_t loopsMet = 0;
  SharedLoop *loop = nullptr;
  uint64_t loopLower = 0; ///< what its iteration 0 is called
  /// The loop of a lone thread, as one chunk, until it was taken.
  uint64_t aloneIterations = 0;
};

/// What the library keeps for each thread.
struct ThreadState {
  Member *current = nullptr; ///< innermost region that it runs
  Member outside;            ///< its part outside of all regions
  int32_t threads = 1;       ///< setting for the regions that it starts
  int32_t pushed = 0;        ///< limit for the next region only; 0: none

  Member &member() { return current ? *current : outside; }
};

// `__thread` rather than `thread_local`: nothing has to be run to initialize it.
extern __thread ThreadState threadState;

/// Makes `member` the calling thread's part while in scope.
class EnterRegion {
public:
  EnterRegion(ThreadState &state, Member &member) : state(state), outer(state.current) {
    state.current = &member;
  }
  ~EnterRegion() { state.current = outer; }
  EnterRegion(const EnterRegion &) = delete;
  EnterRegion &operator=(const EnterRegion &) = delete;

private:
  ThreadState &state;
  Member *outer;
};

} // namespace shapejit::rt

#endif // SHAPEJIT_RT_TEAM_H
