// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The process ends while workers look for work, and while another thread is inside a region.

#include "Kmpc.h"

#include <thread>
#include <unistd.h>

int main() {
  std::thread([] {
    shapejitRtSetThreads(3);
    for (;;)
      kmpc::parallel([] { kmpc::dynamicLoop(100, 1, [](uint64_t) {}); });
  }).detach();
  shapejitRtSetThreads(3);
  for (int i = 0; i < 1000; ++i)
    kmpc::parallel([] { kmpc::dynamicLoop(100, 1, [](uint64_t) {}); });
  std::puts("ok");
}
