// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Threads that call a program, make its graphs, add regions, move its weights and capture it, all
// at the same time. Usage: cuda_graph_threads DRIVER, a fake one

#include "GraphPrograms.h"

#include <atomic>
#include <random>
#include <thread>

namespace {

constexpr int kRounds = 200;
constexpr int kThreadLocal = 1;
constexpr int64_t kRegions = 5;

/// Calls in a stream; regions that are not there are added, as any thread may.
void call(MadeProgram &program, const Chain &chain, void *stream, int64_t weights, int seed) {
  wordsOfPrograms = chain.wordCount();
  for (int i = 0; i < kRounds; ++i) {
    int64_t key = (seed + i) % kRegions;
    auto symbols = chain.symbols(key, 1 + (seed * 31 + i) % 1000, weights);
    int32_t answer = program.run(symbols, stream);
    while (answer == ShapejitRtCudaRegionMissing) {
      program.add(key, chain.launches);
      answer = program.run(symbols, stream);
    }
    CHECK(answer == ShapejitRtCudaOk || answer == ShapejitRtCudaGraphMissing);
    symbols[1] = -1;
    CHECK(program.run(symbols, stream) == ShapejitRtCudaBadCall && errorHas("s0 = -1"));
  }
}

void capture(MadeProgram &program, const Chain &chain, void *stream) {
  wordsOfPrograms = chain.wordCount();
  program.add(0, chain.launches);
  for (int i = 0; i < kRounds / 4; ++i) {
    fakeBeginCapture(stream, kThreadLocal);
    CHECK(program.run(chain.symbols(0, 1 + i), stream) == ShapejitRtCudaOk);
    void *graph = fakeEndCapture(stream);
    CHECK(graph);
    fakeGraphReplay(graph);
    fakeGraphDestroy(graph);
  }
}

void prepare(MadeProgram &program, const std::atomic<bool> &stop) {
  while (!stop) {
    int32_t missing = 0;
    int32_t status = shapejitRtCudaProgramPrepare(program.handle, &missing);
    CHECK(status == ShapejitRtCudaOk || errorHas("before its weights are bound"));
    program.use();
    std::this_thread::yield();
  }
}

/// `moves`: half of the threads bring other weights, so that everything is made anew all the time.
void testThreads(LoadedModule &module, bool moves) {
  Chain chain(module, 3, 256);
  MadeProgram program(module, chain.callWords(), chain.wordCount(), 3);
  std::atomic<bool> stop{false};
  std::thread maker([&] { prepare(program, stop); });
  std::vector<void *> streams;
  for (int i = 0; i < 5; ++i)
    streams.push_back(fakeStreamCreate(0));
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    int64_t weights = moves && i % 2 ? 0x600000 : 0x500000;
    // Two of them share a stream.
    void *stream = streams[static_cast<size_t>(i % 4)];
    threads.emplace_back([&, stream, weights, i] { call(program, chain, stream, weights, i); });
  }
  if (!moves)
    threads.emplace_back([&] { capture(program, chain, streams[4]); });
  for (std::thread &thread : threads)
    thread.join();
  stop = true;
  maker.join();
  ShapejitRtCudaProgramUse use = program.use();
  CHECK(use.regions == kRegions && use.instances <= 3);
  CHECK(use.graphCalls + use.streamCalls == 5 * kRounds);
  CHECK(use.bindings >= 1 && (moves || use.bindings == 1));
  program.prepare();
  // After all of it, a call still writes what it is to write.
  int first = fakeLaunches();
  auto symbols = chain.symbols(2, 77);
  int32_t answer = program.run(symbols, streams[0]);
  CHECK(answer <= ShapejitRtCudaOk && answer != ShapejitRtCudaRegionMissing);
  checkCall(first, chain.launches, symbols, streams[0], answer == ShapejitRtCudaOk);
  program.release();
  for (void *stream : streams)
    fakeStreamDestroy(stream);
}

/// Many more streams than instances, in any order and shared by threads. The fake driver sees to it
/// that no block is changed while another stream may still read it.
void testManyStreams(LoadedModule &module) {
  Chain chain(module, 2);
  MadeProgram program(module, chain.callWords(), chain.wordCount(), 4);
  for (int64_t key = 0; key < kRegions; ++key)
    program.add(key, chain.launches);
  std::vector<void *> streams = {nullptr};
  while (streams.size() < 13)
    streams.push_back(fakeStreamCreate(0));
  std::atomic<bool> stop{false};
  std::thread maker([&] { prepare(program, stop); });
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 5; ++seed)
    threads.emplace_back([&, seed] {
      wordsOfPrograms = chain.wordCount();
      std::mt19937 random(seed);
      for (int i = 0; i < 5 * kRounds; ++i) {
        auto symbols = chain.symbols(random() % kRegions, 1 + random() % 1000);
        int32_t answer = program.run(symbols, streams[random() % streams.size()]);
        CHECK(answer == ShapejitRtCudaOk || answer == ShapejitRtCudaGraphMissing);
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  stop = true;
  maker.join();
  CHECK(program.use().instances == 4 && program.use().bindings == 1);
  CHECK(fakeCalls("cuStreamWaitEvent") > kRounds);
  program.release();
  for (void *stream : streams)
    if (stream)
      fakeStreamDestroy(stream);
}

} // namespace

int main(int argc, char **argv) {
  openFake(argc, argv);
  {
    LoadedModule module;
    for (bool moves : {false, true}) {
      testThreads(module, moves);
      fakeForgetLaunches();
    }
    testManyStreams(module);
  }
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0 && fakeMemory() == 256);
  CHECK(fakeGraphs() == 0 && fakeExecutables() == 0);
  checkViolations();
  std::puts("ok");
}
