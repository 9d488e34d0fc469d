// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Pool.h"

#include "Wait.h"

#include <algorithm>
#include <csignal>

using namespace shapejit::rt;

// How long a worker looks for the next region before it sleeps: regions of one program follow each
// other within microseconds, and waking up takes tens of them.
static constexpr int64_t kSearchNanoseconds = 200'000;
// Room for a kernel's scratch, whatever limit the process set for its own stacks.
static constexpr size_t kStackBytes = 8 << 20;

// Threads that one thread wakes at once.
static constexpr int32_t kWakeUps = 2;

Pool shapejit::rt::pool;

Team *Pool::acquire() {
  uint64_t seen = lent.load(std::memory_order_relaxed);
  while (~seen != 0) {
    int index = __builtin_ctzll(~seen);
    if (lent.compare_exchange_weak(seen, seen | UINT64_C(1) << index, std::memory_order_acquire,
                                   std::memory_order_relaxed))
      return &teams[index];
  }
  return nullptr;
}

void Pool::release(Team *team) { lent.fetch_and(~bit(team), std::memory_order_release); }

void Pool::publish(Team *team, uint32_t workers) {
  startWorkers(workers);
  published.fetch_or(bit(team), std::memory_order_seq_cst);
  wakeSome();
}

void Pool::retract(Team *team) { published.fetch_and(~bit(team), std::memory_order_relaxed); }

void Pool::wakeSome() {
  // A worker that is about to sleep either counts here already, or sees the published team.
  int32_t asleep = sleepers.load(std::memory_order_seq_cst);
  if (asleep == 0)
    return;
  // Those awake look for a team, or are busy in another one.
  int32_t wanted = asleep - this->workers();
  for (uint64_t left = published.load(std::memory_order_relaxed); left != 0; left &= left - 1)
    wanted += teams[__builtin_ctzll(left)].wantedWorkers();
  if (wanted <= 0)
    return;
  wakeUps.fetch_add(1, std::memory_order_seq_cst);
  futexWake(wakeUps, std::min(wanted, kWakeUps));
}

// Workers.

void *Pool::workerMain(void *pool) { static_cast<Pool *>(pool)->work(); }

void Pool::work() {
  bool wasAsleep = false;
  for (;;) {
    int32_t thread;
    Team *team = join(thread);
    if (!team) {
      sleep();
      wasAsleep = true;
      continue;
    }
    if (wasAsleep)
      wakeSome();
    wasAsleep = false;
    team->runAsWorker(thread);
  }
}

Team *Pool::join(int32_t &thread) {
  Spin spin(kSearchNanoseconds);
  do {
    if (Team *team = tryJoin(thread))
      return team;
  } while (spin.again());
  return nullptr;
}

Team *Pool::tryJoin(int32_t &thread) {
  for (uint64_t left = published.load(std::memory_order_relaxed); left != 0; left &= left - 1) {
    Team &team = teams[__builtin_ctzll(left)];
    if (team.tryJoin(thread))
      return &team;
  }
  return nullptr;
}

bool Pool::anyOpen() const {
  for (uint64_t left = published.load(std::memory_order_seq_cst); left != 0; left &= left - 1)
    if (teams[__builtin_ctzll(left)].isOpen())
      return true;
  return false;
}

void Pool::sleep() {
  uint32_t seen = wakeUps.load(std::memory_order_seq_cst);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (!anyOpen())
    futexWait(wakeUps, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Pool::startWorkers(int32_t count) {
  if (started.load(std::memory_order_relaxed) >= count)
    return;
  // A thread that starts workers does so for all.
  if (pthread_mutex_trylock(&startLock) != 0)
    return;
  if (!handlesFork)
    handlesFork = pthread_atfork(beforeFork, afterForkInParent, afterForkInChild) == 0;
  // Without the handlers a child would wait for workers that it does not have.
  while (handlesFork && !refused && workers() < count) {
    refused = !startWorker();
    if (!refused)
      started.fetch_add(1, std::memory_order_relaxed);
  }
  pthread_mutex_unlock(&startLock);
}

bool Pool::startWorker() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0)
    return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  // Signals are for the threads of the program.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t worker;
  bool created = pthread_create(&worker, &attributes, workerMain, this) == 0;
  if (created)
    pthread_setname_np(worker, "shapejit");
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  pthread_attr_destroy(&attributes);
  return created;
}

// Fork. The child has one thread, the one that called fork(): no workers, no open regions.

void Pool::beforeFork() { pthread_mutex_lock(&pool.startLock); }

void Pool::afterForkInParent() { pthread_mutex_unlock(&pool.startLock); }

void Pool::afterForkInChild() {
  pool.abandonTeams();
  pthread_mutex_unlock(&pool.startLock);
}

void Pool::abandonTeams() {
  for (Team &team : teams)
    team.abandon();
  lent.store(0, std::memory_order_relaxed);
  published.store(0, std::memory_order_relaxed);
  sleepers.store(0, std::memory_order_relaxed);
  started.store(0, std::memory_order_relaxed);
  refused = false;
}
