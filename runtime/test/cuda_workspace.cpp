// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Scratch memory of streams and graphs, and what graphs hold. Usage: cuda_workspace DRIVER, a fake
// one

#include "CudaKernels.h"

#include <set>
#include <thread>

namespace {

constexpr int64_t kNothing = 256;    // what the device itself takes
constexpr int64_t kZeros = 64 << 10; // of each buffer
constexpr int64_t kMiB = 1 << 20;
constexpr int kGlobal = 0, kThreadLocal = 1;

/// A kernel with that many bytes of workspace for a CTA, the first of which are zero.
Gemm scratchy(int64_t bytesPerCta, int64_t zeroed, int64_t leastCtas = 0) {
  Gemm gemm("gemm_scratch");
  gemm.addWorkspace(bytesPerCta, zeroed, leastCtas);
  return gemm;
}

uint64_t workspaceOfLast() { return parameterOf<uint64_t>(lastLaunch(), 6); }

uint64_t launchFor(const MadeKernel &kernel, void *stream, int64_t m = 300) {
  CHECK(kernel.launch(m, 512, 64, stream) == ShapejitRtCudaOk);
  return workspaceOfLast();
}

ShapejitRtCudaWorkspaceUse use(int32_t device = 0) {
  ShapejitRtCudaWorkspaceUse use;
  CHECK(shapejitRtCudaWorkspaceUse(device, &use) == ShapejitRtCudaOk);
  CHECK(device != 0 || fakeMemory() == kNothing + use.bytes);
  return use;
}

void releaseAll() { CHECK(shapejitRtCudaWorkspaceRelease(0) == ShapejitRtCudaOk); }

bool isZero(uint64_t address, int64_t bytes) {
  auto *first = reinterpret_cast<const unsigned char *>(address);
  for (int64_t i = 0; i < bytes; ++i)
    if (first[i] != 0)
      return false;
  return true;
}

void testUnopened() {
  ShapejitRtCudaWorkspaceUse use;
  CHECK(shapejitRtCudaWorkspaceUse(0, &use) == ShapejitRtCudaOk && use.bytes == 0);
  CHECK(shapejitRtCudaWorkspaceRelease(0) == ShapejitRtCudaOk);
  CHECK(shapejitRtCudaWorkspaceRelease(-1) == ShapejitRtCudaOk);
}

void testSharing(LoadedModule &module) {
  MadeKernel few(module, scratchy(1024, 128)), many(module, scratchy(1024, 4096));
  MadeKernel none(module, scratchy(1024, 0));
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0);
  uint64_t first = launchFor(few, one);
  CHECK(launchFor(few, one) == first);
  // The zeros of all kernels end where the scratch part starts.
  CHECK(launchFor(many, one) + 4096 == first + 128);
  CHECK(launchFor(none, one) == first + 128);
  CHECK(isZero(launchFor(many, one), 4096) && first % 128 == 0);
  // Streams do not share, nor does the default stream.
  std::set<uint64_t> different = {first, launchFor(few, two), launchFor(few, nullptr)};
  CHECK(different.size() == 3 && use().buffers == 3);
  CHECK(use().bytes == 3 * (kZeros + kMiB) && use().graphBytes == 0);
  // What the caller gives is taken as it is.
  CHECK(few.launch(300, 512, 64, one, MadeKernel::at(0x70000)) == ShapejitRtCudaOk);
  CHECK(workspaceOfLast() == 0x70000);
  // A launch of nothing takes nothing.
  void *three = fakeStreamCreate(0);
  CHECK(few.launch(0, 512, 64, three) == ShapejitRtCudaOk && use().buffers == 3);
  // A stream that has the handle of one that is gone has another buffer.
  fakeStreamDestroy(two);
  fakeStreamDestroy(three);
  void *four = fakeStreamCreate(0);
  launchFor(few, four);
  CHECK(use().buffers == 4);
  releaseAll();
  CHECK(use().buffers == 0 && use().bytes == 0);
  fakeStreamDestroy(one);
  fakeStreamDestroy(four);
}

void testGrowth(LoadedModule &module) {
  MadeKernel small(module, scratchy(1024, 128)), large(module, scratchy(20 << 10, 128));
  Gemm unlimited = scratchy(1 << 20, 128);
  unlimited.interface.ctasPerSm = 0;
  MadeKernel all(module, unlimited);
  void *stream = fakeStreamCreate(0);
  launchFor(small, stream);
  launchFor(large, stream); // the persistent grid of 6 CTAs
  CHECK(use().bytes == kZeros + kMiB);
  launchFor(large, stream, 100000); // 132 CTAs of 20 KiB
  CHECK(use().bytes == kZeros + 3 * kMiB && use().buffers == 1);
  CHECK(isZero(workspaceOfLast(), 128));
  launchFor(all, stream, 128); // 2 CTAs of 1 MiB
  CHECK(use().bytes == kZeros + 3 * kMiB);
  launchFor(all, stream, 256); // 4 CTAs; at least twice as large as before
  CHECK(use().bytes == kZeros + 6 * kMiB);
  // What a persistent kernel may ever need, at once.
  int allocations = fakeCalls("cuMemAlloc");
  releaseAll();
  CHECK(shapejitRtCudaReserve(large.handle, stream) == ShapejitRtCudaOk);
  CHECK(use().bytes == kZeros + 3 * kMiB);
  launchFor(large, stream, 100000);
  CHECK(fakeCalls("cuMemAlloc") == allocations + 1);
  CHECK(shapejitRtCudaReserve(all.handle, stream) == ShapejitRtCudaOk);
  CHECK(fakeCalls("cuMemAlloc") == allocations + 1);
  releaseAll();
  fakeStreamDestroy(stream);
}

/// However few CTAs there are, memory is there for as many as the kernel says.
void testLeastCtas(LoadedModule &module) {
  MadeKernel few(module, scratchy(20 << 10, 128, 200)), many(module, scratchy(20 << 10, 128, 20));
  void *stream = fakeStreamCreate(0);
  launchFor(few, stream); // 6 CTAs, and room for 200
  CHECK(use().bytes == kZeros + 4 * kMiB);
  releaseAll();
  CHECK(shapejitRtCudaReserve(few.handle, stream) == ShapejitRtCudaOk);
  CHECK(use().bytes == kZeros + 4 * kMiB);
  releaseAll();
  launchFor(many, stream, 100000); // 132 CTAs
  CHECK(use().bytes == kZeros + 3 * kMiB);
  ShapejitRtCudaKernelInfo info;
  shapejitRtCudaKernelInfo(few.handle, &info);
  CHECK(info.workspaceBytes == 200 * (20 << 10) + 128);
  releaseAll();
  fakeStreamDestroy(stream);
}

void testLimit(LoadedModule &module) {
  MadeKernel kernel(module, scratchy(20 << 10, 128));
  void *streams[4];
  for (void *&stream : streams)
    stream = fakeStreamCreate(0);
  int64_t each = kZeros + 3 * kMiB;
  shapejitRtCudaWorkspaceLimit(2 * each);
  for (int i = 0; i < 4; ++i)
    launchFor(kernel, streams[i], 100000);
  CHECK(use().bytes == 2 * each);
  // Those of 2 and 3 are there, and 2 was used last.
  uint64_t two = launchFor(kernel, streams[2], 100000);
  launchFor(kernel, streams[0], 100000);
  CHECK(launchFor(kernel, streams[2], 100000) == two && use().bytes == 2 * each);
  shapejitRtCudaWorkspaceLimit(each - 1);
  releaseAll();
  int before = fakeLaunches();
  CHECK(kernel.launch(100000, 512, 64, streams[0]) == ShapejitRtCudaBadCall);
  CHECK(errorHas("above the limit of") && errorHas("kernel gemm_scratch"));
  CHECK(fakeLaunches() == before && use().buffers == 0);
  CHECK(kernel.launch(128, 512, 64, streams[0]) == ShapejitRtCudaOk);
  shapejitRtCudaWorkspaceLimit(INT64_C(1) << 30);
  releaseAll();
  for (void *stream : streams)
    fakeStreamDestroy(stream);
}

void testNoMemory(LoadedModule &module) {
  MadeKernel kernel(module, scratchy(1024, 128));
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0);
  launchFor(kernel, one);
  fakeFail("cuMemAlloc", 2, 0);
  launchFor(kernel, two); // there is room once the other's buffer is gone
  CHECK(use().buffers == 1);
  for (const char *function : {"cuMemAlloc", "cuMemsetD8Async", "cuStreamGetId"}) {
    fakeFail(function, 999, 0);
    CHECK(kernel.launch(300, 512, 64, one) == ShapejitRtCudaDriverFailed);
    CHECK(errorHas(function) && errorHas("kernel gemm_scratch") && use().buffers == 1);
  }
  launchFor(kernel, one);
  releaseAll();
  fakeStreamDestroy(one);
  fakeStreamDestroy(two);
}

/// A launch that waits for the stream's queue keeps its buffer, and holds nobody up.
void testLaunchesThatWait(LoadedModule &module) {
  MadeKernel small(module, scratchy(1024, 128)), large(module, scratchy(20 << 10, 128));
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0);
  for (bool release : {true, false}) {
    fakeHoldLaunches(true);
    std::thread waiting([&] { CHECK(small.launch(300, 512, 64, one) == ShapejitRtCudaOk); });
    while (fakeHeldLaunches() == 0)
      std::this_thread::yield();
    if (release)
      releaseAll();
    else
      CHECK(shapejitRtCudaReserve(large.handle, one) == ShapejitRtCudaOk); // grows
    CHECK(shapejitRtCudaReserve(small.handle, two) == ShapejitRtCudaOk);
    CHECK(use().buffers == (release ? 2 : 3));
    fakeHoldLaunches(false);
    waiting.join();
    CHECK(use().buffers == (release ? 1 : 2)); // freed now
    uint64_t now = launchFor(large, one, 100000);
    CHECK(now != 0 && use().buffers == 2);
    releaseAll();
    CHECK(use().buffers == 0);
  }
  fakeStreamDestroy(one);
  fakeStreamDestroy(two);
}

/// A captured launch leaves the capture intact, and its graph holds what it needs.
void testCapture(int mode) {
  void *stream = fakeStreamCreate(0), *graph;
  uint64_t workspace;
  {
    LoadedModule module;
    MadeKernel kernel(module, scratchy(1024, 128)), other(module, scratchy(5 << 20, 128));
    uint64_t own = launchFor(kernel, stream);
    fakeBeginCapture(stream, mode);
    workspace = launchFor(kernel, stream);
    CHECK(lastLaunch().graph && workspace != own && isZero(workspace, 128));
    CHECK(launchFor(kernel, stream) == workspace);
    CHECK(launchFor(other, stream, 128) != workspace); // too small for this one, and kept
    LoadedModule another;                              // loading is not part of it
    CHECK(shapejitRtCudaReserve(other.handle, stream) == ShapejitRtCudaOk);
    graph = fakeEndCapture(stream);
    CHECK(graph);
    CHECK(launchFor(kernel, stream) == own);
    CHECK(use().buffers == 4 && use().graphBytes == use().bytes - (kZeros + kMiB));
  }
  CHECK(fakeModules() == 1); // the graph's
  releaseAll();
  CHECK(use().buffers == 3 && isZero(workspace, 128));
  fakeGraphDestroy(graph);
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  CHECK(use().buffers == 0);
  fakeStreamDestroy(stream);
}

/// Graphs do not share scratch memory, even if the same stream captured them.
void testTwoGraphs(LoadedModule &module) {
  MadeKernel kernel(module, scratchy(1024, 128));
  void *stream = fakeStreamCreate(0);
  void *graphs[2];
  uint64_t workspaces[2];
  for (int i = 0; i < 2; ++i) {
    fakeBeginCapture(stream, kThreadLocal);
    workspaces[i] = launchFor(kernel, stream);
    graphs[i] = fakeEndCapture(stream);
  }
  CHECK(workspaces[0] != workspaces[1]);
  fakeGraphDestroy(graphs[0]);
  CHECK(use().buffers == 1 && isZero(workspaces[1], 128));
  fakeGraphDestroy(graphs[1]);
  CHECK(use().buffers == 0);
  fakeStreamDestroy(stream);
}

/// Branches of a graph may run at the same time.
void testForkedCapture(LoadedModule &module) {
  MadeKernel kernel(module, scratchy(1024, 128));
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0);
  fakeBeginCapture(one, kGlobal);
  fakeJoinCapture(two, one);
  uint64_t first = launchFor(kernel, one), second = launchFor(kernel, two);
  CHECK(first != second && launchFor(kernel, one) == first && use().buffers == 2);
  fakeGraphDestroy(fakeEndCapture(one));
  CHECK(use().buffers == 0);
  fakeStreamDestroy(one);
  fakeStreamDestroy(two);
}

/// A graph that cannot hold what it needs is not launched into.
void testCaptureFailures() {
  void *stream = fakeStreamCreate(0);
  {
    LoadedModule module;
    MadeKernel kernel(module, scratchy(1024, 128));
    // The first call is for the module, the second for the workspace.
    for (const char *function : {"cuUserObjectCreate", "cuGraphRetainUserObject"})
      for (int skipped : {0, 1}) {
        fakeBeginCapture(stream, kGlobal);
        int before = fakeLaunches();
        fakeFail(function, 999, skipped);
        CHECK(kernel.launch(300, 512, 64, stream) == ShapejitRtCudaDriverFailed);
        CHECK(errorHas(function) && fakeLaunches() == before);
        CHECK(kernel.launch(300, 512, 64, stream) == ShapejitRtCudaOk);
        fakeGraphDestroy(fakeEndCapture(stream));
        CHECK(use().buffers == 0);
      }
  }
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  fakeStreamDestroy(stream);
}

void testBlockCapture() {
  void *stream = fakeStreamCreate(0), *graph;
  {
    LoadedModule module;
    Gemm gemm("gemm_block");
    gemm.toBlock();
    MadeKernel kernel(module, gemm);
    fakeBeginCapture(stream, kGlobal);
    CHECK(shapejitRtCudaLaunchBlock(kernel.handle, MadeKernel::at(0x50000), stream) ==
          ShapejitRtCudaOk);
    graph = fakeEndCapture(stream);
  }
  CHECK(fakeModules() == 1);
  fakeGraphDestroy(graph);
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  fakeStreamDestroy(stream);
}

} // namespace

int main(int argc, char **argv) {
  testUnopened();
  openFake(argc, argv);
  {
    LoadedModule module;
    testSharing(module);
    testGrowth(module);
    testLeastCtas(module);
    testLimit(module);
    testNoMemory(module);
    testLaunchesThatWait(module);
    testTwoGraphs(module);
    testForkedCapture(module);
  }
  CHECK(fakeModules() == 0);
  testCapture(kGlobal);
  testCapture(kThreadLocal);
  testCaptureFailures();
  testBlockCapture();
  checkViolations();
  std::puts("ok");
}
