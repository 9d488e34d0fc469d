// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Programs of many launches for tests, on the fake driver.

#ifndef SHAPEJIT_RT_TEST_GRAPH_PROGRAMS_H
#define SHAPEJIT_RT_TEST_GRAPH_PROGRAMS_H

#include "CudaKernels.h"

#include "shapejit_rt/graph.h"

#include <memory>

/// A call's symbols are the key of its region, and then all its words.
inline int64_t regionOfSymbols(const int64_t *symbols) { return symbols[0]; }

/// How many words the programs of this thread have.
inline thread_local int32_t wordsOfPrograms = 0;

inline void wordsOfSymbols(const int64_t *symbols, void *const *, void *, int64_t *words) {
  std::memcpy(words, symbols + 1, sizeof(int64_t) * static_cast<size_t>(wordsOfPrograms));
}

/// A launch, with its kernel's parameters for the comparison.
struct ChainLaunch {
  const ShapejitRtCudaKernel *kernel;
  Gemm gemm;
  std::vector<int32_t> operands, values;
  int32_t ctas = 0; ///< of the grid; 0: all that are resident
  bool isChained = true;
  std::vector<int32_t> waits{}; ///< if it is not chained

  ShapejitRtCudaProgramLaunch native() const {
    static const int32_t none = 0;
    const int32_t *waited = waits.empty() ? &none : waits.data();
    return {kernel,
            operands.data(),
            values.data(),
            static_cast<int32_t>(operands.size()),
            static_cast<int32_t>(values.size()),
            ctas,
            isChained ? nullptr : waited,
            static_cast<int32_t>(waits.size())};
  }
};

struct MadeProgram {
  ShapejitRtCudaProgram *handle = nullptr;
  ShapejitRtCudaProgramDescription description = {};

  MadeProgram(LoadedModule &module, int32_t callWords, int32_t wordCount, int32_t instances = 4) {
    description = {module.handle,   "head_64",     64, 64, callWords, wordCount, instances,
                   regionOfSymbols, wordsOfSymbols};
    wordsOfPrograms = wordCount;
    must(shapejitRtCudaProgramCreate(&description, &handle));
  }
  ~MadeProgram() { release(); }

  void release() {
    if (handle)
      shapejitRtCudaProgramRelease(handle);
    handle = nullptr;
  }

  static void must(int32_t status) {
    if (status == ShapejitRtCudaOk)
      return;
    std::fprintf(stderr, "%d: %s\n", status, shapejitRtCudaError());
    std::abort();
  }

  int32_t tryAdd(int64_t key, const std::vector<ChainLaunch> &launches) {
    std::vector<ShapejitRtCudaProgramLaunch> native;
    for (const ChainLaunch &launch : launches)
      native.push_back(launch.native());
    return shapejitRtCudaProgramAddRegion(handle, key, native.data(),
                                          static_cast<int32_t>(native.size()));
  }

  void add(int64_t key, const std::vector<ChainLaunch> &launches) { must(tryAdd(key, launches)); }

  int32_t run(const std::vector<int64_t> &symbols, void *stream) {
    return shapejitRtCudaProgramRun(handle, symbols.data(), nullptr, nullptr, stream);
  }

  void bind(const std::vector<int64_t> &symbols) {
    must(shapejitRtCudaProgramBind(handle, symbols.data(), nullptr));
  }

  /// Makes all graphs that are missing; how many that were.
  int prepare() {
    int made = 0;
    for (int32_t missing = 1; missing; ++made)
      must(shapejitRtCudaProgramPrepare(handle, &missing));
    return made;
  }

  ShapejitRtCudaProgramUse use() {
    ShapejitRtCudaProgramUse result;
    shapejitRtCudaProgramUse(handle, &result);
    return result;
  }
};

/// What a launch's kernel is given by the words of a call.
struct GivenWords {
  std::vector<void *> operands;
  std::vector<int64_t> values;

  GivenWords(const ChainLaunch &launch, const std::vector<int64_t> &symbols) {
    for (int32_t word : launch.operands)
      operands.push_back(reinterpret_cast<void *>(symbols[1 + static_cast<size_t>(word)]));
    for (int32_t word : launch.values)
      values.push_back(symbols[1 + static_cast<size_t>(word)]);
  }
};

struct alignas(128) HostEntry {
  unsigned char bytes[4096];
};

/// Whether the entry in device memory that a launch reads is, to the bit, what a kernel is given
/// when it is launched alone. The strides of an empty tensor do not matter.
inline void checkEntry(const FakeLaunch &launch, const ChainLaunch &chain,
                       const std::vector<int64_t> &symbols) {
  auto *entry = reinterpret_cast<unsigned char *>(parameterOf<uint64_t>(launch, 0));
  CHECK(chain.gemm.interface.entry == std::string(launch.entry));
  CHECK(reinterpret_cast<uint64_t>(entry) % 128 == 0);
  void *workspace = nullptr;
  for (const ShapejitRtCudaParameter &parameter : chain.gemm.parameters)
    if (parameter.kind == ShapejitRtCudaWorkspace) {
      std::memcpy(&workspace, entry + parameter.offset, 8);
      CHECK(workspace);
      for (int64_t i = 0; i < parameter.zeroed; ++i)
        CHECK(static_cast<unsigned char *>(workspace)[i] == 0);
    }
  GivenWords given(chain, symbols);
  static thread_local HostEntry wanted;
  std::memset(wanted.bytes, 0, sizeof(wanted.bytes));
  MadeProgram::must(shapejitRtCudaFillBlock(chain.kernel, given.operands.data(),
                                            given.values.data(), workspace, wanted.bytes));
  for (const ShapejitRtCudaParameter &parameter : chain.gemm.parameters) {
    if (parameter.kind != ShapejitRtCudaTensorMap)
      continue;
    FakeTensorMap map, made;
    std::memcpy(&map, wanted.bytes + parameter.offset, sizeof(map));
    std::memcpy(&made, entry + parameter.offset, sizeof(made));
    bool empty = false;
    for (int i = 0; i < parameter.rank; ++i)
      empty |= given.values[static_cast<size_t>(parameter.dims[i])] == 0;
    if (empty)
      std::memcpy(wanted.bytes + parameter.offset + offsetof(FakeTensorMap, pitches), made.pitches,
                  sizeof(made.pitches));
  }
  CHECK(std::memcmp(entry, wanted.bytes, static_cast<size_t>(chain.gemm.interface.blockBytes)) ==
        0);
}

/// Checks the launches from a number on: the head kernel, then those of a region.
/// Whether a graph has just the edges to a node that its launch waits for. Node 0 is the head
/// kernel.
inline void checkWaits(const FakeLaunch &launch, const ChainLaunch &chain, uint32_t node) {
  std::vector<uint32_t> expected = {chain.isChained ? node - 1 : 0};
  if (!chain.isChained && !chain.waits.empty()) {
    expected.clear();
    for (int32_t wait : chain.waits)
      expected.push_back(static_cast<uint32_t>(wait) + 1);
  }
  CHECK(std::vector<uint32_t>(launch.waits, launch.waits + launch.waitCount) == expected);
  bool mayStartEarly = expected.size() == 1 && expected[0] != 0;
  CHECK(launch.programmatic == (mayStartEarly && chain.gemm.interface.programmatic ? 1u : 0u));
}

inline void checkCall(int first, const std::vector<ChainLaunch> &launches,
                      const std::vector<int64_t> &symbols, void *stream, bool graph) {
  CHECK(fakeLaunches() == first + 1 + static_cast<int>(launches.size()));
  for (size_t i = 0; i <= launches.size(); ++i) {
    const FakeLaunch &launch = *fakeLaunchAt(first + static_cast<int>(i));
    CHECK(launch.carveout == 100);
    CHECK(launch.stream == stream && !launch.graph && !launch.executable == !graph);
    if (i == 0) {
      CHECK(std::string(launch.entry).rfind("head_", 0) == 0 && !launch.programmatic);
      continue;
    }
    if (graph) {
      checkWaits(launch, launches[i - 1], static_cast<uint32_t>(i));
    } else {
      // The first one waits for all that came before.
      bool programmatic = i > 1 && launches[i - 1].gemm.interface.programmatic;
      CHECK(launch.programmatic == (programmatic ? 1u : 0u));
    }
    const ShapejitRtCudaInterface &interface = launches[i - 1].gemm.interface;
    ShapejitRtCudaKernelInfo info;
    shapejitRtCudaKernelInfo(launches[i - 1].kernel, &info);
    int32_t wanted = launches[i - 1].ctas ? launches[i - 1].ctas : info.residentCtas;
    CHECK(launch.grid[0] == static_cast<uint32_t>(std::min(wanted, info.residentCtas)));
    CHECK(launch.block[0] == static_cast<uint32_t>(interface.threads));
    CHECK(launch.sharedBytes == static_cast<uint32_t>(interface.sharedBytes));
    CHECK(launch.cluster == static_cast<uint32_t>(interface.cluster > 1 ? interface.cluster : 0));
    checkEntry(launch, launches[i - 1], symbols);
  }
}

/// A chain of products x[i + 1] = x[i] * w[i] with free rows. Words: m, the addresses of all x;
/// fixed: k, the addresses of the weights.
struct Chain {
  static constexpr int64_t kSize = 64;

  int count;
  std::vector<ChainLaunch> launches;
  std::vector<std::unique_ptr<MadeKernel>> kernels;

  Chain(LoadedModule &module, int count, int64_t bytesPerCta = 0) : count(count) {
    for (int i = 0; i < count; ++i) {
      Gemm gemm("gemm_block");
      if (bytesPerCta)
        gemm.addWorkspace(bytesPerCta, 128);
      gemm.interface.programmatic = 1;
      gemm.toBlock();
      kernels.push_back(std::make_unique<MadeKernel>(module, gemm));
      int32_t m = 0, k = callWords(), x = 1 + i, w = callWords() + 1 + i;
      launches.push_back({kernels.back()->handle, gemm, {x, w, x + 1}, {m, k, k, k, k, k}, 0});
    }
  }

  int32_t callWords() const { return 2 + count; }
  int32_t wordCount() const { return callWords() + 1 + count; }

  std::vector<int64_t> symbols(int64_t key, int64_t m, int64_t weights = 0x500000) const {
    std::vector<int64_t> result = {key, m};
    for (int i = 0; i <= count; ++i)
      result.push_back(0x100000 + 0x1000 * i + 16 * (m % 7));
    result.push_back(kSize);
    for (int i = 0; i < count; ++i)
      result.push_back(weights + 0x1000 * i);
    return result;
  }
};

#endif // SHAPEJIT_RT_TEST_GRAPH_PROGRAMS_H
