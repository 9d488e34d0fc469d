// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Programs under constant graphs. Usage: cuda_graph DRIVER, a fake one

#include "GraphPrograms.h"

#include <algorithm>
#include <random>
#include <set>

namespace {

constexpr int64_t kNothing = 256; // what the device itself takes
constexpr int kGlobal = 0, kThreadLocal = 1;

std::mt19937_64 randomBits(7);

int64_t draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(randomBits() % static_cast<uint64_t>(most - least + 1));
}

bool chance(int oneIn) { return draw(1, oneIn) == 1; }

/// A kernel in block form with any parameters.
Gemm randomKernel() {
  Gemm gemm("gemm_block");
  gemm.parameters.clear();
  gemm.interface.programmatic = static_cast<int32_t>(draw(0, 1));
  gemm.interface.cluster = static_cast<int32_t>(draw(1, 2));
  for (int64_t i = draw(0, 3); i > 0; --i) {
    ShapejitRtCudaParameter map = {};
    map.kind = ShapejitRtCudaTensorMap;
    map.operand = static_cast<int32_t>(draw(0, 3));
    const int32_t elements[] = {ShapejitRtCudaU8, ShapejitRtCudaBF16, ShapejitRtCudaF32,
                                ShapejitRtCudaF64};
    map.element = elements[draw(0, 3)];
    map.rank = static_cast<int32_t>(draw(1, 5));
    for (int dim = 0; dim < map.rank; ++dim) {
      map.dims[dim] = static_cast<int32_t>(draw(0, 5));
      map.box[dim] = 16;
      if (dim)
        map.strides[dim - 1] = static_cast<int32_t>(draw(0, 5));
    }
    map.swizzle = map.element == ShapejitRtCudaF64 ? 128 : 0;
    map.promotion = 256;
    gemm.parameters.push_back(map);
  }
  for (int64_t i = draw(0, 3); i > 0; --i)
    gemm.addSize(static_cast<int32_t>(draw(0, 5)), chance(2) ? 4 : 8);
  for (int64_t i = draw(0, 3); i > 0; --i) {
    ShapejitRtCudaParameter pointer = {};
    pointer.kind = ShapejitRtCudaPointer;
    pointer.operand = static_cast<int32_t>(draw(0, 3));
    gemm.parameters.push_back(pointer);
  }
  if (chance(3))
    gemm.addWorkspace(draw(0, 1000), 16 * draw(0, 8));
  std::shuffle(gemm.parameters.begin(), gemm.parameters.end(), randomBits);
  int64_t offset = 0;
  for (ShapejitRtCudaParameter &parameter : gemm.parameters) {
    int64_t bytes = parameter.kind == ShapejitRtCudaTensorMap ? 128
                    : parameter.kind == ShapejitRtCudaSize    ? parameter.bytes
                                                              : 8;
    offset = (offset + bytes - 1) / bytes * bytes;
    parameter.offset = offset;
    offset += bytes;
  }
  gemm.interface.block = 1;
  gemm.interface.blockBytes = std::max<int64_t>(offset, 8);
  return gemm;
}

/// Words that are mostly valid, whatever they are used for.
int64_t randomWord() {
  switch (draw(0, 40)) {
  case 0:
    return 0;
  case 1:
    return 1;
  case 2:
    return draw(1, 1000);
  case 3:
    return chance(4) ? -1 : (INT64_C(1) << draw(20, 45)) - 16;
  default:
    return 16 * draw(1, 1 << 20);
  }
}

/// Whether launches alone would take the words of a call, too.
bool areTaken(const std::vector<ChainLaunch> &launches, const std::vector<int64_t> &symbols) {
  static HostEntry entry;
  for (const ChainLaunch &launch : launches) {
    GivenWords given(launch, symbols);
    if (shapejitRtCudaFillBlock(launch.kernel, given.operands.data(), given.values.data(),
                                MadeKernel::at(0x9000), entry.bytes) != ShapejitRtCudaOk)
      return false;
  }
  return true;
}

/// The block after every call is what launches alone are given, for programs of any kind.
void testRandomPrograms() {
  int queued = 0, refused = 0;
  for (int round = 0; round < 300; ++round) {
    LoadedModule module;
    std::vector<std::unique_ptr<MadeKernel>> kernels;
    std::vector<ChainLaunch> launches;
    int32_t callWords = static_cast<int32_t>(draw(0, 20));
    int32_t wordCount = callWords + static_cast<int32_t>(draw(callWords ? 0 : 1, 20));
    for (int64_t i = draw(1, 5); i > 0; --i) {
      Gemm gemm = randomKernel();
      kernels.push_back(std::make_unique<MadeKernel>(module, gemm));
      ChainLaunch launch = {kernels.back()->handle, gemm, {}, {}, 0};
      if (chance(2))
        launch.ctas = gemm.interface.cluster * static_cast<int32_t>(draw(1, 100));
      launch.isChained = chance(2);
      for (size_t n = 0; n < launches.size() && !launch.isChained; ++n)
        if (chance(2))
          launch.waits.push_back(static_cast<int32_t>(n));
      for (int n = 0; n < 4; ++n)
        launch.operands.push_back(static_cast<int32_t>(draw(0, wordCount - 1)));
      for (int n = 0; n < 6; ++n)
        launch.values.push_back(static_cast<int32_t>(draw(0, wordCount - 1)));
      launches.push_back(launch);
    }
    MadeProgram program(module, callWords, wordCount);
    program.add(3, launches);
    std::vector<int64_t> symbols = {3};
    for (int32_t i = 0; i < wordCount; ++i)
      symbols.push_back(randomWord());
    for (int call = 0; call < 20; ++call) {
      // Fixed words seldom change.
      for (int32_t i = 0; i < (chance(10) ? wordCount : callWords); ++i)
        symbols[1 + static_cast<size_t>(i)] = randomWord();
      int first = fakeLaunches();
      int32_t answer = program.run(symbols, nullptr);
      if (!areTaken(launches, symbols)) {
        CHECK(answer == ShapejitRtCudaBadCall && fakeLaunches() == first);
        ++refused;
        continue;
      }
      CHECK(answer == ShapejitRtCudaOk || answer == ShapejitRtCudaGraphMissing);
      checkCall(first, launches, symbols, nullptr, answer == ShapejitRtCudaOk);
      ++queued;
      if (chance(3))
        program.prepare();
    }
    fakeForgetLaunches();
  }
  CHECK(queued > 1500 && refused > 500);
}

/// Launches wait for others that are ahead of them, each named once.
void testWrongWaits() {
  LoadedModule module;
  Chain chain(module, 3);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  ChainLaunch &last = chain.launches[2];
  last.isChained = false;
  const std::vector<int32_t> wrong[] = {{2}, {3}, {-1}, {1, 0}, {1, 1}};
  for (const std::vector<int32_t> &waits : wrong) {
    last.waits = waits;
    CHECK(program.tryAdd(0, chain.launches) == ShapejitRtCudaBadInterface);
    CHECK(std::string(shapejitRtCudaError()).find("it waits for launches ahead") !=
          std::string::npos);
  }
  last.waits = {0, 1};
  program.add(0, chain.launches);
}

/// A call is launched one by one until its graph is made, and by the graph from then on.
void testPaths(LoadedModule &module) {
  Chain chain(module, 3);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  void *stream = fakeStreamCreate(0);
  CHECK(program.run(chain.symbols(5, 100), stream) == ShapejitRtCudaRegionMissing);
  program.add(5, chain.launches);
  program.add(5, {}); // it is there
  for (int64_t m : {100, 0, 1, 333}) {
    int first = fakeLaunches();
    auto symbols = chain.symbols(5, m);
    CHECK(program.run(symbols, stream) == ShapejitRtCudaGraphMissing);
    checkCall(first, chain.launches, symbols, stream, false);
  }
  CHECK(program.prepare() == 1 && fakeGraphs() == 1 && fakeExecutables() == 1);
  int launches = fakeCalls("cuLaunchKernelEx");
  for (int64_t m : {7, 0, 1, 4096}) {
    int first = fakeLaunches();
    auto symbols = chain.symbols(5, m);
    CHECK(program.run(symbols, stream) == ShapejitRtCudaOk);
    checkCall(first, chain.launches, symbols, stream, true);
  }
  CHECK(fakeCalls("cuLaunchKernelEx") == launches);
  ShapejitRtCudaProgramUse use = program.use();
  CHECK(use.regions == 1 && use.instances == 1 && use.graphs == 1 && use.bindings == 1);
  CHECK(use.streamCalls == 4 && use.graphCalls == 4 && use.capturedCalls == 0);
  // Of each launch two maps, and m; n and k are known, as the weight is.
  CHECK(use.patches == 3 * 3 && use.blockBytes == 3 * 512 && use.tableBytes == 9 * 96);
  CHECK(fakeMemory() == kNothing + use.blockBytes + use.tableBytes);
  program.release();
  CHECK(fakeMemory() == kNothing && fakeGraphs() == 0 && fakeExecutables() == 0);
  fakeStreamDestroy(stream);
}

/// Graphs made ahead serve the first call of the first stream.
void testAhead(LoadedModule &module) {
  Chain chain(module, 2), other(module, 2);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  int32_t missing;
  CHECK(shapejitRtCudaProgramPrepare(program.handle, &missing) == ShapejitRtCudaBadCall);
  CHECK(errorHas("before its weights are bound"));
  program.add(0, chain.launches);
  program.bind(chain.symbols(0, 0));
  program.add(1, other.launches);
  CHECK(program.prepare() == 2 && program.use().graphs == 2 && program.use().instances == 1);
  CHECK(shapejitRtCudaProgramPrepare(program.handle, &missing) == ShapejitRtCudaOk && !missing);
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0);
  for (int64_t key : {1, 0, 0, 1}) {
    int first = fakeLaunches();
    auto symbols = chain.symbols(key, 10 + key);
    CHECK(program.run(symbols, one) == ShapejitRtCudaOk);
    checkCall(first, key ? other.launches : chain.launches, symbols, one, true);
  }
  // A region that comes later has a graph made for this stream.
  program.add(2, other.launches);
  CHECK(program.prepare() == 1);
  // Another stream gets graphs of what it calls.
  CHECK(program.run(chain.symbols(1, 3), two) == ShapejitRtCudaGraphMissing);
  CHECK(program.prepare() == 1 && program.use().instances == 2 && program.use().graphs == 4);
  CHECK(program.run(chain.symbols(1, 3), two) == ShapejitRtCudaOk);
  CHECK(program.run(chain.symbols(0, 3), two) == ShapejitRtCudaGraphMissing);
  fakeStreamDestroy(one);
  fakeStreamDestroy(two);
}

uint64_t blockOfLast() { return parameterOf<uint64_t>(lastLaunch(), 0); }

/// Streams do not share blocks, but take turns where there are more than instances.
void testStreams(LoadedModule &module) {
  Chain chain(module, 1, 1024);
  MadeProgram program(module, chain.callWords(), chain.wordCount(), 2);
  program.add(0, chain.launches);
  bool graph = false;
  auto call = [&](void *stream) {
    int first = fakeLaunches();
    auto symbols = chain.symbols(0, draw(1, 1000));
    int32_t answer = program.run(symbols, stream);
    CHECK(answer <= 0);
    graph = answer == ShapejitRtCudaOk;
    checkCall(first, chain.launches, symbols, stream, graph);
    return blockOfLast();
  };
  auto waits = [] { return fakeCalls("cuStreamWaitEvent"); };
  void *one = fakeStreamCreate(0), *two = fakeStreamCreate(0), *three = fakeStreamCreate(0);
  uint64_t first = call(one);
  CHECK(call(one) == first && fakeCalls("cuEventRecord") == 0);
  uint64_t second = call(two);
  CHECK(second != first && program.use().instances == 2);
  // The last call of `one` was not recorded, as nobody was to wait for it: its instance goes.
  int frees = fakeCalls("cuMemFree"), before = waits();
  call(three);
  CHECK(fakeCalls("cuMemFree") > frees && waits() == before && program.use().instances == 2);
  program.prepare();
  int graphs = fakeExecutables();
  // From now on instances go from stream to stream as they are.
  frees = fakeCalls("cuMemFree");
  uint64_t third = call(three);
  CHECK(graph && call(two) == second && graph && waits() == before);
  CHECK(call(one) == third && graph && waits() == before + 1);
  CHECK(call(one) == third && waits() == before + 1);
  CHECK(call(three) == second && graph && waits() == before + 2);
  // A stream with the handle of one that is gone is another one.
  fakeStreamDestroy(two);
  two = fakeStreamCreate(0);
  CHECK(call(two) == third && call(nullptr) == second && graph && waits() == before + 4);
  CHECK(fakeCalls("cuMemFree") == frees && fakeExecutables() == graphs && fakeEvents() == 2);
  int64_t scratch = (64 << 10) + 132 * 1024;
  CHECK(program.use().blockBytes == 2 * (512 + scratch) && program.use().instances == 2);
  CHECK(fakeMemory() == kNothing + program.use().blockBytes + program.use().tableBytes);
  // What was not waited for is waited for by the next one.
  fakeFail("cuStreamWaitEvent", 999, 0);
  CHECK(program.run(chain.symbols(0, 5), one) == ShapejitRtCudaDriverFailed);
  CHECK(errorHas("cuStreamWaitEvent"));
  before = waits();
  CHECK(call(one) == third && waits() == before + 1);
  fakeFail("cuEventRecord", 999, 0);
  CHECK(program.run(chain.symbols(0, 5), three) == ShapejitRtCudaDriverFailed);
  CHECK(errorHas("cuEventRecord"));
  call(one);
  frees = fakeCalls("cuMemFree");
  call(two); // that of `three`, which cannot be waited for
  CHECK(fakeCalls("cuMemFree") > frees && program.use().instances == 2);
  program.release();
  CHECK(fakeEvents() == 0);
  fakeStreamDestroy(one);
  fakeStreamDestroy(two);
  fakeStreamDestroy(three);
}

/// Kernels of one instance share scratch memory; one that is too small stays where it is used.
void testWorkspaces(LoadedModule &module) {
  Chain small(module, 2, 1024), large(module, 2, 4096);
  MadeProgram program(module, small.callWords(), small.wordCount());
  program.add(0, small.launches);
  program.add(1, large.launches);
  program.add(2, small.launches);
  int64_t zeros = 64 << 10;
  const int64_t scratch[] = {zeros + 132 * 1024, 2 * zeros + 132 * 5120, 2 * zeros + 132 * 5120};
  for (int64_t key = 0; key < 3; ++key) {
    int first = fakeLaunches();
    auto symbols = small.symbols(key, 77);
    CHECK(program.run(symbols, nullptr) == ShapejitRtCudaGraphMissing);
    checkCall(first, key == 1 ? large.launches : small.launches, symbols, nullptr, false);
    CHECK(program.use().blockBytes == (key + 1) * 2 * 512 + scratch[key]);
  }
}

/// Weights that are elsewhere: blocks, tables and graphs are made anew.
void testRebinding(LoadedModule &module) {
  Chain chain(module, 2);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  program.add(0, chain.launches);
  program.bind(chain.symbols(0, 0));
  program.prepare();
  for (int64_t weights : {0x500000, 0x600000, 0x500000}) {
    auto symbols = chain.symbols(0, 50, weights);
    int first = fakeLaunches();
    int32_t answer = program.run(symbols, nullptr);
    bool graph = first == 0 || answer == ShapejitRtCudaOk;
    checkCall(first, chain.launches, symbols, nullptr, graph);
    CHECK(program.use().instances == 1);
    program.prepare();
    first = fakeLaunches();
    CHECK(program.run(symbols, nullptr) == ShapejitRtCudaOk);
    checkCall(first, chain.launches, symbols, nullptr, true);
    CHECK(fakeMemory() == kNothing + program.use().blockBytes + program.use().tableBytes);
  }
  CHECK(program.use().bindings == 3 && fakeExecutables() == 1);
  // A weight that cannot be taken is refused, and the program goes on with others.
  auto bad = chain.symbols(0, 50, 0x500008);
  int before = fakeLaunches();
  CHECK(program.run(bad, nullptr) == ShapejitRtCudaBadCall);
  CHECK(errorHas("multiple of 16 bytes") && errorHas("operand 1") && errorHas("kernel gemm_block"));
  CHECK(fakeLaunches() == before);
  CHECK(program.run(chain.symbols(0, 50), nullptr) == ShapejitRtCudaGraphMissing);
}

/// A caller's graph has what it needs for as long as it lives.
void testCapture(int mode) {
  void *stream = fakeStreamCreate(0), *graph;
  std::vector<int64_t> symbols;
  uint64_t captured;
  int64_t before = fakeMemory();
  {
    LoadedModule module;
    Chain chain(module, 3, 1024);
    MadeProgram program(module, chain.callWords(), chain.wordCount());
    program.add(0, chain.launches);
    symbols = chain.symbols(0, 321);
    CHECK(program.run(chain.symbols(0, 5), stream) == ShapejitRtCudaGraphMissing);
    uint64_t own = blockOfLast();
    program.prepare();
    fakeBeginCapture(stream, mode);
    int first = fakeLaunches();
    CHECK(program.run(symbols, stream) == ShapejitRtCudaOk);
    CHECK(fakeLaunches() == first + 4 && fakeLaunchAt(first)->graph);
    CHECK(fakeLaunchAt(first + 1)->programmatic == 0 && lastLaunch().programmatic == 1);
    captured = blockOfLast();
    CHECK(captured != own);
    CHECK(program.run(symbols, stream) == ShapejitRtCudaOk && blockOfLast() != captured);
    // Refused calls leave the capture intact.
    CHECK(program.run(chain.symbols(0, -1), stream) == ShapejitRtCudaBadCall);
    CHECK(program.run(chain.symbols(1, 1), stream) == ShapejitRtCudaRegionMissing);
    graph = fakeEndCapture(stream);
    CHECK(graph && program.use().capturedCalls == 2);
    CHECK(program.run(chain.symbols(0, 9), stream) == ShapejitRtCudaOk && blockOfLast() == own);
    // Kernels do not run in a capture.
    CHECK(program.run(chain.symbols(0, 9), stream) == ShapejitRtCudaOk);
    int again = fakeLaunches();
    fakeGraphReplay(graph);
    CHECK(fakeLaunches() == again + 8);
    for (int i = 0; i < 3; ++i)
      checkEntry(*fakeLaunchAt(again + 1 + i), chain.launches[static_cast<size_t>(i)], symbols);
  }
  CHECK(fakeModules() == 1 && fakeMemory() > before && fakeGraphs() == 0); // the caller's
  int first = fakeLaunches();
  fakeGraphReplay(graph);
  CHECK(fakeLaunches() == first + 8);
  fakeGraphDestroy(graph);
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  LoadedModule module; // a call that frees
  Chain chain(module, 1);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  CHECK(fakeMemory() == before);
  fakeStreamDestroy(stream);
}

/// Whatever call of the driver fails, the text says so, and the next call works.
void testFailures(LoadedModule &module) {
  Chain chain(module, 3, 1024);
  const char *ofCalls[] = {"cuMemAlloc",         "cuMemcpyHtoDAsync",      "cuMemsetD8Async",
                           "cuStreamGetId",      "cuStreamGetCaptureInfo", "cuLaunchKernelEx",
                           "cuStreamSynchronize"};
  for (const char *function : ofCalls)
    for (int skipped = 0; skipped < 3; ++skipped) {
      MadeProgram program(module, chain.callWords(), chain.wordCount());
      program.add(0, chain.launches);
      auto symbols = chain.symbols(0, 10);
      int before = fakeCalls(function);
      fakeFail(function, 999, skipped);
      int32_t answer = program.run(symbols, nullptr);
      if (fakeCalls(function) <= before + skipped)
        CHECK(answer == ShapejitRtCudaGraphMissing); // it is not called that often
      else
        CHECK(answer == ShapejitRtCudaDriverFailed && errorHas(function));
      fakeFail(function, 0, 0);
      int first = fakeLaunches();
      CHECK(program.run(symbols, nullptr) == ShapejitRtCudaGraphMissing);
      checkCall(first, chain.launches, symbols, nullptr, false);
      CHECK(fakeMemory() == kNothing + program.use().blockBytes + program.use().tableBytes);
    }
  const char *ofGraphs[] = {"cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddDependencies",
                            "cuGraphUpload", "cuGraphInstantiateWithFlags"};
  for (const char *function : ofGraphs) {
    MadeProgram program(module, chain.callWords(), chain.wordCount());
    program.add(0, chain.launches);
    auto symbols = chain.symbols(0, 10);
    CHECK(program.run(symbols, nullptr) == ShapejitRtCudaGraphMissing);
    fakeFail(function, 999, 0);
    int32_t missing;
    CHECK(shapejitRtCudaProgramPrepare(program.handle, &missing) == ShapejitRtCudaDriverFailed);
    CHECK(errorHas(function) && missing == 0);
    // It is not tried again, and calls do without it.
    int first = fakeLaunches();
    CHECK(program.run(symbols, nullptr) == ShapejitRtCudaOk);
    checkCall(first, chain.launches, symbols, nullptr, false);
    program.release();
    CHECK(fakeGraphs() == 0 && fakeExecutables() == 0 && fakeMemory() == kNothing);
  }
  for (const char *function : {"cuGraphLaunch", "cuGraphExecKernelNodeSetParams"}) {
    MadeProgram program(module, chain.callWords(), chain.wordCount());
    program.add(0, chain.launches);
    program.bind(chain.symbols(0, 10));
    program.prepare();
    fakeFail(function, 999, 0);
    CHECK(program.run(chain.symbols(0, 10), nullptr) == ShapejitRtCudaDriverFailed);
    CHECK(errorHas(function));
    CHECK(program.run(chain.symbols(0, 10), nullptr) == ShapejitRtCudaOk);
  }
  for (const char *function : {"cuUserObjectCreate", "cuGraphRetainUserObject"})
    for (int skipped = 0; skipped < 5; ++skipped) {
      MadeProgram program(module, chain.callWords(), chain.wordCount());
      program.add(0, chain.launches);
      void *stream = fakeStreamCreate(0);
      fakeBeginCapture(stream, kGlobal);
      int before = fakeLaunches(), calls = fakeCalls(function);
      fakeFail(function, 999, skipped);
      int32_t answer = program.run(chain.symbols(0, 10), stream);
      if (fakeCalls(function) > calls + skipped)
        CHECK(answer == ShapejitRtCudaDriverFailed && fakeLaunches() == before);
      fakeFail(function, 0, 0);
      fakeGraphDestroy(fakeEndCapture(stream));
      program.release();
      CHECK(fakeMemory() == kNothing);
      fakeStreamDestroy(stream);
    }
}

/// What is wrong is named.
void testErrors(LoadedModule &module) {
  Chain chain(module, 2);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  auto wrong = [&](auto change) {
    std::vector<ChainLaunch> launches = chain.launches;
    change(launches[1]);
    return program.tryAdd(1, launches) == ShapejitRtCudaBadInterface;
  };
  CHECK(wrong([](ChainLaunch &launch) { launch.values.pop_back(); }));
  CHECK(errorHas("launch 1, kernel gemm_block: a launch binds every value of its kernel"));
  CHECK(wrong([](ChainLaunch &launch) { launch.operands.pop_back(); }));
  CHECK(errorHas("every operand of its kernel to a word, not 2"));
  CHECK(wrong([](ChainLaunch &launch) { launch.operands[0] = 99; }));
  CHECK(errorHas("it must refer to a word that there is, not 99"));
  CHECK(wrong([](ChainLaunch &launch) { launch.values[0] = -1; }));
  CHECK(wrong([](ChainLaunch &launch) { launch.ctas = -1; }));
  CHECK(errorHas("whole clusters of CTAs, not -1"));
  MadeKernel plain(module, Gemm("gemm"));
  CHECK(wrong([&](ChainLaunch &launch) { launch.kernel = plain.handle; }));
  CHECK(errorHas("by value"));
  LoadedModule elsewhere(1);
  Chain other(elsewhere, 1);
  CHECK(wrong([&](ChainLaunch &launch) { launch.kernel = other.launches[0].kernel; }));
  CHECK(errorHas("on device 1, and its program on device 0"));
  CHECK(program.tryAdd(1, {}) == ShapejitRtCudaBadInterface && errorHas("has 0 launches"));
  CHECK(program.use().regions == 0);
  program.add(0, chain.launches);
  int before = fakeLaunches();
  CHECK(program.run(chain.symbols(0, -5), nullptr) == ShapejitRtCudaBadCall);
  CHECK(errorHas("s0 = -5") && errorHas("kernel gemm_block"));
  CHECK(program.run(chain.symbols(0, INT64_C(1) << 31), nullptr) == ShapejitRtCudaBadCall);
  CHECK(errorHas("does not fit its 4 bytes"));
  auto odd = chain.symbols(0, 5);
  odd[2] += 8;
  CHECK(program.run(odd, nullptr) == ShapejitRtCudaBadCall && errorHas("(operand 0)"));
  CHECK(fakeLaunches() == before);
  {
    Gemm wide("gemm_block");
    wide.parameters.resize(1);
    wide.toBlock();
    MadeKernel kernel(module, wide);
    ChainLaunch launch = {kernel.handle, wide, {1}, {0, 0, 4, 4, 4, 4}, 0};
    MadeProgram other(module, 2, 5);
    other.add(0, {launch});
    std::vector<int64_t> symbols = {0, (INT64_C(1) << 32) - 1, 0x10000, 0, 0, 64};
    CHECK(other.run(symbols, nullptr) == ShapejitRtCudaGraphMissing);
    symbols[1] += 1;
    CHECK(areTaken({launch}, symbols));
    CHECK(other.run(symbols, nullptr) == ShapejitRtCudaBadCall);
    CHECK(errorHas("4294967296 elements; in a program it has 4294967295 at most"));
  }
  wordsOfPrograms = chain.wordCount();
  // Addresses of what is empty do not matter.
  odd[1] = 0;
  CHECK(program.run(odd, nullptr) == ShapejitRtCudaGraphMissing);
  auto describe = [&](auto change) {
    ShapejitRtCudaProgramDescription description = program.description;
    change(description);
    ShapejitRtCudaProgram *made;
    return shapejitRtCudaProgramCreate(&description, &made) == ShapejitRtCudaBadInterface;
  };
  CHECK(describe([](auto &d) { d.callWords = 65; }) && errorHas("words of a call is 65"));
  CHECK(describe([](auto &d) { d.wordCount = 1 << 20; }) && errorHas("within 0..8192"));
  CHECK(describe([](auto &d) { d.headEntry = "head_1"; }) && errorHas("no such function"));
  CHECK(describe([](auto &d) { d.headEntry = "head_32"; }) && errorHas("takes 256 bytes"));
  CHECK(describe([](auto &d) { d.maxInstances = 0; }));
}

/// The current context is as it was, and need not be the program's.
void testContexts(LoadedModule &module) {
  Chain chain(module, 1);
  MadeProgram program(module, chain.callWords(), chain.wordCount());
  program.add(0, chain.launches);
  for (int device : {-1, 0, 1}) {
    fakeSetContext(device);
    void *stream = fakeStreamCreate(0);
    CHECK(program.run(chain.symbols(0, 4), stream) == ShapejitRtCudaGraphMissing);
    program.prepare();
    CHECK(program.run(chain.symbols(0, 4), stream) == ShapejitRtCudaOk);
    CHECK(fakeContext() == device);
    void *foreign = fakeStreamCreate(1);
    CHECK(program.run(chain.symbols(0, 4), foreign) == ShapejitRtCudaDriverFailed);
    fakeStreamDestroy(stream);
    fakeStreamDestroy(foreign);
  }
  fakeSetContext(-1);
}

} // namespace

int main(int argc, char **argv) {
  openFake(argc, argv);
  testRandomPrograms();
  testWrongWaits();
  {
    LoadedModule module;
    testPaths(module);
    testAhead(module);
    testStreams(module);
    testWorkspaces(module);
    testRebinding(module);
    testFailures(module);
    testErrors(module);
    testContexts(module);
  }
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  testCapture(kGlobal);
  testCapture(kThreadLocal);
  CHECK(shapejitRtCudaModules() == 0 && fakeModules() == 0);
  CHECK(fakeGraphs() == 0 && fakeExecutables() == 0 && fakeEvents() == 0);
  checkViolations();
  std::puts("ok");
}
