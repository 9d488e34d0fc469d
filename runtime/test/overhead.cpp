// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Time that a parallel region takes beyond its work, in nanoseconds, as JSON.
// Usage: overhead THREADS...

#include "Kmpc.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void idle(int64_t nanoseconds) {
  auto end = Clock::now() + std::chrono::nanoseconds(nanoseconds);
  while (Clock::now() < end) {
  }
}

/// Median time of a region whose threads share `chunks` pieces of work of some length, with a pause
/// before each region.
double regionTime(int32_t threads, uint64_t chunks, int64_t work, int64_t pause, int repeats) {
  shapejitRtSetThreads(threads);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    if (pause >= 1'000'000)
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    else
      idle(pause);
    auto start = Clock::now();
    kmpc::parallel([&] {
      kmpc::dynamicLoop(chunks, 1, [&](uint64_t) {
        if (work != 0)
          idle(work);
      });
    });
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

} // namespace

int main(int argc, char **argv) {
  std::printf("[");
  for (int i = 1; i < argc; ++i) {
    int32_t threads = std::atoi(argv[i]);
    std::printf("%s{\"threads\": %d, ", i > 1 ? ",\n " : "", threads);
    std::printf("\"empty\": %.0f, ", regionTime(threads, 0, 0, 0, 20000));
    std::printf("\"8 chunks\": %.0f, ", regionTime(threads, 8, 0, 0, 20000));
    std::printf("\"after 20 us\": %.0f, ", regionTime(threads, 8, 0, 20'000, 2000));
    std::printf("\"8 x 5 us\": %.0f, ", regionTime(threads, 8, 5'000, 0, 2000));
    std::printf("\"8 x 5 us, workers asleep\": %.0f}",
                regionTime(threads, 8, 5'000, 2'000'000, 300));
  }
  std::printf("]\n");
}
