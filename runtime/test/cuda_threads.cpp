// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Threads that load, launch, capture and release at the same time.
// Usage: cuda_threads DRIVER, a fake one

#include "CudaKernels.h"

#include <atomic>
#include <thread>

namespace {

constexpr int kRounds = 300;
constexpr int kThreadLocal = 1;

/// Calls with kernels that all threads share, in a stream of its own and in the default stream.
void call(const MadeKernel &plain, const MadeKernel &scratchy) {
  void *stream = fakeStreamCreate(0);
  for (int i = 0; i < kRounds; ++i) {
    CHECK(plain.launch(1 + i, 512, 64, stream) == ShapejitRtCudaOk);
    CHECK(scratchy.launch(1 + i * 50, 512, 64, stream) == ShapejitRtCudaOk);
    CHECK(scratchy.launch(1 + i, 512, 64) == ShapejitRtCudaOk);
    CHECK(plain.launch(-1 - i, 512, 64) == ShapejitRtCudaBadCall);
    CHECK(errorHas("s0 = " + std::to_string(-1 - i))); // the thread's own
  }
  fakeStreamDestroy(stream);
}

void capture(const MadeKernel &plain, const MadeKernel &scratchy) {
  void *stream = fakeStreamCreate(0);
  for (int i = 0; i < kRounds / 3; ++i) {
    fakeBeginCapture(stream, kThreadLocal);
    CHECK(plain.launch(1 + i, 512, 64, stream) == ShapejitRtCudaOk);
    CHECK(scratchy.launch(1 + i, 512, 64, stream) == ShapejitRtCudaOk);
    void *graph = fakeEndCapture(stream);
    CHECK(graph);
    fakeGraphDestroy(graph);
  }
  fakeStreamDestroy(stream);
}

/// Modules and kernels that come and go, on both devices.
void load() {
  for (int i = 0; i < kRounds / 3; ++i) {
    LoadedModule module(i % 2);
    MadeKernel kernel(module, Gemm("gemm"));
    CHECK(kernel.launch(300, 512, 64) == ShapejitRtCudaOk);
  }
}

void release(const std::atomic<bool> &stop) {
  while (!stop) {
    ShapejitRtCudaWorkspaceUse use;
    CHECK(shapejitRtCudaWorkspaceUse(0, &use) == ShapejitRtCudaOk);
    CHECK(shapejitRtCudaWorkspaceRelease(0) == ShapejitRtCudaOk);
    std::this_thread::yield();
  }
}

} // namespace

int main(int argc, char **argv) {
  openFake(argc, argv);
  {
    LoadedModule module;
    Gemm gemm("gemm_scratch");
    gemm.addWorkspace(20 << 10, 128);
    MadeKernel plain(module, Gemm("gemm")), scratchy(module, gemm);
    std::atomic<bool> stop{false};
    std::thread releaser([&] { release(stop); });
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] { call(plain, scratchy); });
    threads.emplace_back([&] { capture(plain, scratchy); });
    threads.emplace_back([&] { capture(plain, scratchy); });
    threads.emplace_back(load);
    for (std::thread &thread : threads)
      thread.join();
    stop = true;
    releaser.join();
  }
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  CHECK(shapejitRtCudaWorkspaceRelease(0) == ShapejitRtCudaOk);
  CHECK(fakeMemory() == 2 * 256);
  checkViolations();
  std::puts("ok");
}
