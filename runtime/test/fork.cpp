// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// fork() while other threads run regions: parent and children go on, the child with workers of its
// own. Usage: fork COUNT

#include "Kmpc.h"

#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

void region(int32_t threads) {
  shapejitRtSetThreads(threads);
  std::vector<int> visits(100);
  kmpc::parallel([&] {
    kmpc::dynamicLoop(visits.size(), 3, [&](uint64_t i) { ++visits[i]; });
    kmpc::barrier();
    kmpc::staticLoop(visits.size(), [&](uint64_t i) { ++visits[i]; });
  });
  for (int visit : visits)
    CHECK(visit == 2);
}

void child() {
  CHECK(shapejitRtWorkers() == 0);
  for (int i = 0; i < 20; ++i)
    region(3);
  CHECK(shapejitRtWorkers() == 2);
}

void inChild() {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    alarm(20); // a child that hangs fails
    child();
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

} // namespace

int main(int argc, char **argv) {
  CHECK(argc == 2);
  inChild(); // before there is any worker
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      while (!stop)
        region(4);
    });
  for (int i = 0, count = std::atoi(argv[1]); i < count; ++i) {
    region(2);
    inChild();
  }
  stop = true;
  for (std::thread &caller : callers)
    caller.join();
  region(4);
  CHECK(shapejitRtWorkers() == 3);
  std::puts("ok");
}
