// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// OpenMP's entry points, as far as MLIR emits them for omp.parallel, omp.wsloop (any schedule but
// ordered ones, with reductions) and omp.barrier. Their names, arguments and constants are fixed by
// LLVM (llvm/Frontend/OpenMP/OMPKinds.def).
//
// Compiled code passes source locations and thread numbers along; neither is needed here, as each
// thread knows its region.

#include "shapejit_rt/threads.h"

#include "Pool.h"

#include <algorithm>
#include <cstdarg>

using namespace shapejit::rt;

namespace {

// Schedules, after the bits for (non)monotonic order are removed.
constexpr int32_t kStaticChunked = 33;
constexpr int32_t kDynamicChunked = 35;
constexpr int32_t kModifiers = 3 << 29;

/// Threads that the next region of the calling thread may have; forgets a pushed limit. A region in
/// a region runs on the thread that meets it: the others are busy with the outer one.
int32_t requestedThreads(ThreadState &state) {
  int32_t threads = shapejitRtThreads();
  if (state.pushed > 0)
    threads = std::min(threads, state.pushed);
  state.pushed = 0;
  return threads;
}

void runAlone(ThreadState &state, const Task &task) {
  Member member;
  EnterRegion region(state, member);
  task(0);
}

void runRegion(const Task &task, bool parallel) {
  ThreadState &state = threadState;
  int32_t threads = requestedThreads(state);
  Team *team = parallel && threads > 1 ? pool.acquire() : nullptr;
  if (!team) {
    runAlone(state, task);
    return;
  }
  team->open(task, threads - 1);
  pool.publish(team, threads - 1);
  {
    Member member;
    member.team = team;
    EnterRegion region(state, member);
    task(0);
  }
  pool.retract(team);
  team->finish();
  pool.release(team);
}

void forkCall(void *, int32_t count, Microtask function, ...) {
  int32_t room = std::max(count, Task::kRegisters);
  void **arguments = static_cast<void **>(__builtin_alloca(room * sizeof(void *)));
  va_list list;
  va_start(list, function);
  for (int32_t i = 0; i < count; ++i)
    arguments[i] = va_arg(list, void *);
  va_end(list);
  std::fill(arguments + count, arguments + room, nullptr);
  runRegion({function, count, arguments}, /*parallel=*/true);
}

void forkCallIf(void *, int32_t count, Microtask function, int32_t condition, void *argument) {
  void *arguments[Task::kRegisters] = {argument};
  runRegion({function, count, arguments}, condition != 0);
}

int32_t globalThreadNum(void *) { return threadState.member().thread; }

void pushNumThreads(void *, int32_t, int32_t threads) { threadState.pushed = threads; }

void barrier(void *, int32_t) {
  if (Team *team = threadState.member().team)
    team->barrier();
}

/// Iterations first to last, of a loop that MLIR made count up by 1; 0 for last = first - 1.
template <typename T> T iterations(T first, T last) { return last - first + 1; }

/// Narrows the bounds to the calling member's part: all of it at once, or its first chunk with the
/// distance to the next ones.
template <typename T>
void forStaticInit(void *, int32_t, int32_t schedule, int32_t *isLast, T *lower, T *upper,
                   T *stride, T /*increment, always 1*/, T chunk) {
  Member &member = threadState.member();
  T members = member.team ? member.team->assemble() : 1;
  T self = member.thread, count = iterations(*lower, *upper);
  if ((schedule & ~kModifiers) == kStaticChunked) {
    chunk = std::max<T>(chunk, 1);
    *isLast = count != 0 && (count - 1) / chunk % members == self;
    *lower += self * chunk;
    *upper = *lower + (chunk - 1);
    *stride = members * chunk;
    return;
  }
  T share = count / members, longer = count % members;
  T size = share + (self < longer);
  *lower += self * share + std::min(self, longer);
  *upper = *lower + size - 1;
  *stride = count;
  *isLast = size != 0 && (self == members - 1 || (share == 0 && self == longer - 1));
}

void forStaticFini(void *, int32_t) {}

template <typename T>
void dispatchInit(void *, int32_t, int32_t schedule, T lower, T upper, T /*increment, always 1*/,
                  T chunk) {
  Member &member = threadState.member();
  T count = iterations(lower, upper);
  member.loopLower = lower;
  if (!member.team) {
    member.aloneIterations = count;
    return;
  }
  auto kind = (schedule & ~kModifiers) == kDynamicChunked ? Partition::Dynamic : Partition::Guided;
  Partition partition{count, std::max<T>(chunk, 1), kind};
  member.loop = &member.team->enterLoop(member.loopsMet++, partition);
}

/// The next chunk of the loop that the calling member is in; false at the loop's end.
bool nextChunk(Member &member, Chunk &chunk, bool &isLast) {
  if (!member.team) {
    chunk = {0, member.aloneIterations};
    member.aloneIterations = 0;
    isLast = true;
    return chunk.size != 0;
  }
  if (!member.loop->next(chunk, member.team->capacity()))
    return false;
  isLast = chunk.first + chunk.size == member.loop->iterations();
  return true;
}

template <typename T>
int32_t dispatchNext(void *, int32_t, int32_t *isLast, T *lower, T *upper, T *stride) {
  Member &member = threadState.member();
  Chunk chunk;
  bool last = false;
  if (!nextChunk(member, chunk, last))
    return 0;
  *lower = member.loopLower + chunk.first;
  *upper = *lower + (chunk.size - 1);
  *stride = 1;
  *isLast = last;
  return 1;
}

/// Tells the member to combine its part into the result itself, alone among the members.
int32_t reduce(void *, int32_t, int32_t, size_t, void *, void (*)(void *, void *), void *) {
  if (Team *team = threadState.member().team)
    team->lock();
  return 1;
}

void endReduceNowait(void *, int32_t, void *) {
  if (Team *team = threadState.member().team)
    team->unlock();
}

void endReduce(void *location, int32_t thread, void *name) {
  endReduceNowait(location, thread, name);
  barrier(location, thread);
}

} // namespace

const ShapejitRtSymbol *shapejitRtSymbols(size_t *count) {
  static const ShapejitRtSymbol symbols[] = {
      {"__kmpc_barrier", reinterpret_cast<void *>(barrier)},
      {"__kmpc_dispatch_init_4u", reinterpret_cast<void *>(dispatchInit<uint32_t>)},
      {"__kmpc_dispatch_init_8u", reinterpret_cast<void *>(dispatchInit<uint64_t>)},
      {"__kmpc_dispatch_next_4u", reinterpret_cast<void *>(dispatchNext<uint32_t>)},
      {"__kmpc_dispatch_next_8u", reinterpret_cast<void *>(dispatchNext<uint64_t>)},
      {"__kmpc_end_reduce", reinterpret_cast<void *>(endReduce)},
      {"__kmpc_end_reduce_nowait", reinterpret_cast<void *>(endReduceNowait)},
      {"__kmpc_for_static_fini", reinterpret_cast<void *>(forStaticFini)},
      {"__kmpc_for_static_init_4u", reinterpret_cast<void *>(forStaticInit<uint32_t>)},
      {"__kmpc_for_static_init_8u", reinterpret_cast<void *>(forStaticInit<uint64_t>)},
      {"__kmpc_fork_call", reinterpret_cast<void *>(forkCall)},
      {"__kmpc_fork_call_if", reinterpret_cast<void *>(forkCallIf)},
      {"__kmpc_global_thread_num", reinterpret_cast<void *>(globalThreadNum)},
      {"__kmpc_push_num_threads", reinterpret_cast<void *>(pushNumThreads)},
      {"__kmpc_reduce", reinterpret_cast<void *>(reduce)},
      {"__kmpc_reduce_nowait", reinterpret_cast<void *>(reduce)},
      {"shapejitRtThreads", reinterpret_cast<void *>(shapejitRtThreads)},
  };
  *count = sizeof(symbols) / sizeof(symbols[0]);
  return symbols;
}
