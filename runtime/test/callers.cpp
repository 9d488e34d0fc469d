// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Several threads run regions at the same time, with settings that change all the time.
// Usage: callers THREADS SECONDS

#include "Kmpc.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr int32_t kMaxThreads = 5;

/// A loop that nothing follows: the region's end waits for all of it.
void shortRegion(std::mt19937 &random, std::vector<uint64_t> &values) {
  uint64_t count = random() % values.size(), chunk = 1 + random() % 20, seed = random();
  kmpc::parallel([&] {
    kmpc::dynamicLoop(count, chunk, [&](uint64_t i) {
      if (kmpc::threadNum() != 0 && i % 64 == 0)
        usleep(1);
      values[i] = seed ^ i;
    });
  });
  for (uint64_t i = 0; i < count; ++i)
    CHECK(values[i] == (seed ^ i));
}

/// Two dependent loops over an array of the caller's own, and a sum.
void region(std::mt19937 &random, std::vector<uint64_t> &values) {
  uint64_t count = random() % values.size(), chunk = 1 + random() % 20, seed = random();
  bool isStatic = random() % 4 == 0, nested = random() % 4 == 0;
  uint64_t total = 0, expected = 0;
  kmpc::parallel([&] {
    kmpc::dynamicLoop(count, chunk, [&](uint64_t i) { values[i] = seed + i; });
    kmpc::barrier();
    uint64_t part = 0;
    auto sum = [&](uint64_t i) { part += values[count - 1 - i]; };
    if (isStatic)
      kmpc::staticLoop(count, sum);
    else
      kmpc::dynamicLoop(count, chunk, sum, kmpc::Guided);
    if (nested)
      kmpc::parallel([&] { kmpc::dynamicLoop(3, 1, [&](uint64_t) { part += 0; }); });
    kmpc::reduceCall(nullptr, 0, 1, 8, nullptr, nullptr, nullptr);
    total += part;
    kmpc::endReduce(nullptr, 0, nullptr);
  });
  for (uint64_t i = 0; i < count; ++i)
    expected += seed + i;
  CHECK(total == expected);
}

void caller(unsigned seed, std::chrono::steady_clock::time_point end, std::atomic<long> &regions) {
  std::mt19937 random(seed);
  std::vector<uint64_t> values(500);
  long count = 0;
  while (std::chrono::steady_clock::now() < end) {
    shapejitRtSetThreads(1 + random() % kMaxThreads);
    for (int i = 0; i < 20; ++i, count += 2) {
      region(random, values);
      shortRegion(random, values);
    }
    if (random() % 8 == 0) // longer than workers stay awake
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  }
  regions += count;
}

} // namespace

int main(int argc, char **argv) {
  CHECK(argc == 3);
  auto end = std::chrono::steady_clock::now() +
             std::chrono::milliseconds(static_cast<int>(1000 * std::atof(argv[2])));
  std::atomic<long> regions{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < std::atoi(argv[1]); ++i)
    threads.emplace_back(caller, i, end, std::ref(regions));
  for (std::thread &thread : threads)
    thread.join();
  CHECK(shapejitRtWorkers() < kMaxThreads);
  std::printf("%ld regions\n", regions.load());
}
