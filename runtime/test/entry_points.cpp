// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each entry point: what OpenMP says it does, for teams of 1 to 6 threads.

#include "Kmpc.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <unistd.h>
#include <vector>
#include <xmmintrin.h>

namespace {

const uint64_t kCounts[] = {0, 1, 2, 3, 7, 64, 1000};
const uint64_t kChunks[] = {1, 2, 5, 1000, UINT64_C(1) << 40};

/// Counts visits of iterations.
class Visits {
public:
  explicit Visits(uint64_t count) : visits(count) {}
  void operator()(uint64_t i) {
    CHECK(i < visits.size());
    visits[i].fetch_add(1, std::memory_order_relaxed);
  }
  bool allAre(int expected) const {
    for (const std::atomic<int> &visit : visits)
      if (visit.load(std::memory_order_relaxed) != expected)
        return false;
    return true;
  }

private:
  std::vector<std::atomic<int>> visits;
};

/// Holds the calling member until `expected` members are here. All workers come, also if they
/// sleep.
class Meeting {
public:
  explicit Meeting(int expected) : missing(expected) {}
  void await() {
    --missing;
    for (int i = 0; missing > 0; ++i) {
      CHECK(i < 100'000);
      usleep(5);
    }
  }

private:
  std::atomic<int> missing;
};

void testDynamicLoops() {
  for (uint64_t count : kCounts)
    for (uint64_t chunk : kChunks)
      for (kmpc::Schedule schedule : {kmpc::Dynamic, kmpc::Guided}) {
        Visits visits(count);
        kmpc::parallel([&] { kmpc::dynamicLoop(count, chunk, std::ref(visits), schedule); });
        CHECK(visits.allAre(1));
      }
}

void testStaticLoops() {
  for (uint64_t count : kCounts) {
    Visits visits(count);
    kmpc::parallel([&] { kmpc::staticLoop(count, std::ref(visits)); });
    CHECK(visits.allAre(1));
    for (uint64_t chunk : {UINT64_C(1), UINT64_C(3), UINT64_C(500)}) {
      Visits chunked(count);
      kmpc::parallel([&] { kmpc::staticLoop(count, chunk, std::ref(chunked)); });
      CHECK(chunked.allAre(1));
    }
  }
}

void testLastIteration() {
  for (uint64_t count : kCounts) {
    std::atomic<int> dynamicLast{0}, staticLast{0};
    kmpc::parallel([&] {
      int32_t last = 0;
      uint64_t lower, upper, stride;
      kmpc::dispatchInit(nullptr, 0, kmpc::Dynamic, 1, count, 1, 3);
      while (kmpc::dispatchNext(nullptr, 0, &last, &lower, &upper, &stride)) {
        CHECK(bool(last) == (upper == count));
        dynamicLast += last;
      }
      lower = 0, upper = count - 1;
      kmpc::staticInit(nullptr, 0, kmpc::Static, &last, &lower, &upper, &stride, 1, 0);
      staticLast += last;
    });
    CHECK(dynamicLast == (count != 0) && staticLast == (count != 0));
  }
}

void testNarrowLoops() {
  auto *init = kmpc::symbol<void(void *, int32_t, int32_t, uint32_t, uint32_t, uint32_t, uint32_t)>(
      "__kmpc_dispatch_init_4u");
  auto *next =
      kmpc::symbol<int32_t(void *, int32_t, int32_t *, uint32_t *, uint32_t *, uint32_t *)>(
          "__kmpc_dispatch_next_4u");
  auto *staticInit =
      kmpc::symbol<void(void *, int32_t, int32_t, int32_t *, uint32_t *, uint32_t *, uint32_t *,
                        uint32_t, uint32_t)>("__kmpc_for_static_init_4u");
  for (uint32_t count : {0u, 1u, 77u}) {
    Visits visits(count);
    kmpc::parallel([&] {
      int32_t last;
      uint32_t lower, upper, stride;
      init(nullptr, 0, kmpc::Dynamic, 1, count, 1, 2);
      while (next(nullptr, 0, &last, &lower, &upper, &stride))
        for (uint32_t i = lower; i <= upper; ++i)
          visits(i - 1);
      lower = 0, upper = count - 1;
      staticInit(nullptr, 0, kmpc::Static, &last, &lower, &upper, &stride, 1, 0);
      for (uint32_t i = 0, size = upper - lower + 1; i < size; ++i)
        visits(lower + i);
    });
    CHECK(visits.allAre(2));
  }
}

/// Many loops of one region, with and without barriers between them: some members are ahead.
void testLoopsOfOneRegion() {
  constexpr int kLoops = 43;
  constexpr uint64_t kCount = 40;
  Visits visits(kLoops * kCount);
  Meeting meeting(shapejitRtThreads());
  kmpc::parallel([&] {
    meeting.await();
    for (int loop = 0; loop < kLoops; ++loop) {
      auto body = [&](uint64_t i) {
        visits(loop * kCount + i);
        if (i == kCount / 2 && loop % 4 == 0)
          usleep(300); // the others run ahead
      };
      if (loop % 3 == 2)
        kmpc::staticLoop(kCount, body);
      else
        kmpc::dynamicLoop(kCount, 3, body);
      if (loop % 20 == 19)
        kmpc::barrier();
    }
  });
  CHECK(visits.allAre(1));
}

/// What is written before a barrier is read after it, by any member.
void testBarrier() {
  constexpr uint64_t kCount = 200;
  std::vector<uint64_t> first(kCount), second(kCount);
  kmpc::parallel([&] {
    for (uint64_t round = 1; round <= 5; ++round) {
      kmpc::dynamicLoop(kCount, 7, [&](uint64_t i) { first[i] = i * round; });
      kmpc::barrier();
      kmpc::dynamicLoop(kCount, 9, [&](uint64_t i) { second[i] = first[kCount - 1 - i] + 1; });
      kmpc::barrier();
    }
  });
  for (uint64_t i = 0; i < kCount; ++i)
    CHECK(second[i] == (kCount - 1 - i) * 5 + 1);
}

/// All threads join a region that lasts, whether they were awake or asleep.
void testThreadNumbers(int32_t threads) {
  CHECK(kmpc::threadNum() == 0);
  for (int round = 0; round < 100; ++round) {
    Meeting meeting(threads);
    Visits numbers(threads);
    kmpc::parallel([&] {
      numbers(kmpc::threadNum());
      meeting.await();
    });
    CHECK(numbers.allAre(1));
    usleep(round * 3);
  }
}

/// Regions that start when workers are about to sleep, which they do after 200 us, get them as
/// well.
void testRegionsAsWorkersFallAsleep(int32_t threads) {
  using Clock = std::chrono::steady_clock;
  for (int round = 0; round < 1000; ++round) {
    auto start = Clock::now() + std::chrono::nanoseconds(195'000 + round % 200 * 50);
    while (Clock::now() < start) {
    }
    Meeting meeting(threads);
    kmpc::parallel([&] { meeting.await(); });
  }
}

void testNesting() {
  Visits visits(30);
  kmpc::parallel([&] {
    kmpc::dynamicLoop(6, 1, [&](uint64_t i) {
      int32_t outer = kmpc::threadNum();
      kmpc::parallel([&] {
        CHECK(kmpc::threadNum() == 0 && shapejitRtThreads() == 1);
        kmpc::dynamicLoop(5, 2, [&](uint64_t j) { visits(5 * i + j); });
        kmpc::barrier();
      });
      CHECK(kmpc::threadNum() == outer);
    });
  });
  CHECK(visits.allAre(1));
}

void testOutsideOfRegions() {
  Visits visits(10);
  kmpc::dynamicLoop(10, 3, std::ref(visits));
  kmpc::staticLoop(10, std::ref(visits));
  kmpc::barrier();
  CHECK(visits.allAre(2));
}

void testReduction() {
  for (uint64_t count : kCounts) {
    uint64_t total = 0;
    kmpc::parallel([&] {
      uint64_t part = 0;
      kmpc::dynamicLoop(count, 4, [&](uint64_t i) { part += i; });
      CHECK(kmpc::reduceCall(nullptr, 0, 1, 8, nullptr, nullptr, nullptr) == 1);
      total += part;
      kmpc::endReduce(nullptr, 0, nullptr);
      CHECK(total == (count ? count * (count - 1) / 2 : 0));
    });
  }
}

void testCondition() {
  std::atomic<int> members{0};
  kmpc::parallelIf(false, [&] { ++members; });
  CHECK(members == 1);
  Visits visits(100);
  kmpc::parallelIf(true, [&] { kmpc::dynamicLoop(100, 1, std::ref(visits)); });
  CHECK(visits.allAre(1));
}

/// A pushed limit lowers the number of threads of the next region, and of that one only.
void testPushedLimit() {
  kmpc::pushNumThreads(nullptr, 0, 1);
  std::atomic<int> members{0};
  kmpc::parallel([&] { ++members; });
  CHECK(members == 1);
  kmpc::pushNumThreads(nullptr, 0, 1);
  kmpc::parallelIf(false, [] {});
  kmpc::pushNumThreads(nullptr, 0, 500);
  kmpc::parallel([] {});
  CHECK(shapejitRtWorkers() < shapejitRtThreads());
}

template <typename... Values> void expect(int32_t *global, int32_t *bound, Values... values) {
  CHECK(*global == kmpc::threadNum() && *bound == *global);
  uintptr_t expected = 100;
  (CHECK(reinterpret_cast<uintptr_t>(values) == expected++), ...);
  CHECK(expected == 100 + sizeof...(values));
  CHECK(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 16 == 0);
}

template <typename... Values> void forkWith(Values... values) {
  auto *function = reinterpret_cast<kmpc::Microtask *>(&expect<Values...>);
  kmpc::forkCall(nullptr, sizeof...(values), function, values...);
}

void testCapturedValues() {
  auto value = [](int i) { return reinterpret_cast<void *>(uintptr_t(100 + i)); };
  forkWith();
  forkWith(value(0));
  forkWith(value(0), value(1), value(2));
  forkWith(value(0), value(1), value(2), value(3));
  forkWith(value(0), value(1), value(2), value(3), value(4));
  forkWith(value(0), value(1), value(2), value(3), value(4), value(5));
  forkWith(value(0), value(1), value(2), value(3), value(4), value(5), value(6), value(7), value(8),
           value(9), value(10), value(11), value(12), value(13), value(14), value(15), value(16));
}

/// Workers treat denormals as the thread that started the region does.
void testFloatingPointControl() {
  constexpr unsigned kFlushToZero = 0x8000;
  for (unsigned mode : {kFlushToZero, 0u}) {
    unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~kFlushToZero) | mode);
    Meeting meeting(shapejitRtThreads());
    kmpc::parallel([&] {
      meeting.await();
      CHECK((_mm_getcsr() & kFlushToZero) == mode);
    });
    _mm_setcsr(before);
  }
}

void testThreadSetting() {
  shapejitRtSetThreads(-3);
  CHECK(shapejitRtThreads() == 1);
  shapejitRtSetThreads(1 << 30);
  CHECK(shapejitRtThreads() == 1024);
  shapejitRtSetThreads(3);
  auto entry = [](const int64_t *symbols, void **buffers, void *arena) {
    CHECK(symbols[0] == 5 && buffers[0] == symbols && arena == buffers);
    CHECK(shapejitRtThreads() == 2);
  };
  int64_t symbols[] = {5};
  void *buffers[] = {symbols};
  shapejitRtRun(entry, symbols, buffers, buffers, 2);
  CHECK(shapejitRtThreads() == 3);
}

} // namespace

int main() {
  CHECK(shapejitRtThreads() == 1);
  testThreadSetting();
  CHECK(shapejitRtWorkers() == 0);
  for (int32_t threads : {1, 2, 3, 6}) {
    shapejitRtSetThreads(threads);
    testDynamicLoops();
    testStaticLoops();
    testLastIteration();
    testNarrowLoops();
    testLoopsOfOneRegion();
    testBarrier();
    testThreadNumbers(threads);
    testNesting();
    testOutsideOfRegions();
    testReduction();
    testCondition();
    testPushedLimit();
    testCapturedValues();
    testFloatingPointControl();
    CHECK(shapejitRtWorkers() == threads - 1);
    if (threads == 2)
      testRegionsAsWorkersFallAsleep(threads);
  }
  shapejitRtSetThreads(2);
  kmpc::parallel([] {});
  CHECK(shapejitRtWorkers() == 5);
  std::puts("ok");
}
