// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The worker threads of the process.

#ifndef SHAPEJIT_RT_POOL_H
#define SHAPEJIT_RT_POOL_H

#include "Team.h"

#include <atomic>
#include <cstdint>
#include <pthread.h>

namespace shapejit::rt {

/// Lends teams to threads that start regions, and runs workers that join open ones.
///
/// Workers are daemons: started when a region first wants them, asleep while there is nothing to
/// do, never joined. All they touch between regions is the pool, which is never destroyed. So they
/// need no farewell when the process ends. A worker that was woken wakes others in turn, so that
/// the thread that starts a region need not wake them all.
class Pool {
public:
  /// Regions that can be open at once; each needs a thread that starts it.
  static constexpr int kTeams = 64;
  /// The most threads of a region.
  static constexpr int32_t kMaxThreads = 1024;

  constexpr Pool() = default;

  /// A team for a region of the calling thread; null if all are in use.
  Team *acquire();
  void release(Team *team);

  /// Lets workers join an open team, and starts or wakes them if too few are awake.
  void publish(Team *team, uint32_t workers);
  /// Ends what `publish` began.
  void retract(Team *team);

  /// Workers that were started.
  int32_t workers() const { return started.load(std::memory_order_relaxed); }

private:
  static void *workerMain(void *pool);
  static void beforeFork();
  static void afterForkInParent();
  static void afterForkInChild();

  [[noreturn]] void work();
  Team *join(int32_t &thread);
  Team *tryJoin(int32_t &thread);
  bool anyOpen() const;
  void sleep();
  void wakeSome();
  void startWorkers(int32_t count);
  bool startWorker();
  void abandonTeams();

  uint64_t bit(Team *team) const { return UINT64_C(1) << (team - teams); }

  /// Teams that are lent; those that workers may join. One bit each.
  alignas(64) std::atomic<uint64_t> lent{0};
  alignas(64) std::atomic<uint64_t> published{0};

  /// Workers that sleep or are about to: each increments this, and looks for open teams once more.
  alignas(64) std::atomic<int32_t> sleepers{0};
  /// What they sleep on; changed by each thread that wakes some.
  std::atomic<uint32_t> wakeUps{0};

  std::atomic<int32_t> started{0};
  bool refused = false; ///< the system let us have no more workers
  bool handlesFork = false;
  pthread_mutex_t startLock = PTHREAD_MUTEX_INITIALIZER;

  Team teams[kTeams];
};

extern Pool pool;

} // namespace shapejit::rt

#endif // SHAPEJIT_RT_POOL_H
