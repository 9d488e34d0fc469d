// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels for the tests of launches, on the fake driver.

#ifndef SHAPEJIT_RT_TEST_CUDA_KERNELS_H
#define SHAPEJIT_RT_TEST_CUDA_KERNELS_H

#include "Check.h"
#include "FakeCuda.h"

#include "shapejit_rt/cuda.h"

#include <cstring>
#include <string>
#include <vector>

/// A gemm: tensor maps of a (k, m), b (n, k) and c (n, m), sizes m, n and k; what it takes beside
/// them is set before it is made. Its values are m, n, k and the strides of the three operands.
struct Gemm {
  static constexpr const char *kImage = "fake\n"
                                        "gemm 168 1024 384 128 128 128 4 4 4\n"
                                        "gemm_scratch 168 1024 384 128 128 128 4 4 8 8\n"
                                        "gemm_block 168 1024 384 8\n"
                                        "head_32 16 0 1024 8 8 8 4 256\n"
                                        "head_64 16 0 1024 8 8 8 4 512\n";

  std::vector<const char *> names = {"s0", "n", "k", "lda", "ldb", "ldc"};
  std::vector<ShapejitRtCudaTile> tiles = {{0, 128}, {1, 256}};
  std::vector<ShapejitRtCudaParameter> parameters;
  ShapejitRtCudaInterface interface = {};

  explicit Gemm(const char *entry) {
    interface.entry = entry;
    interface.threads = 384;
    interface.sharedBytes = 200 << 10;
    interface.cluster = 1;
    interface.ctasPerSm = 1;
    addMap(0, {2, 0}, 3, {64, 128});
    addMap(1, {1, 2}, 4, {64, 64});
    addMap(2, {1, 0}, 5, {64, 64});
    addSize(0, 4);
    addSize(1, 4);
    addSize(2, std::strcmp(entry, "gemm_scratch") == 0 ? 8 : 4);
  }

  /// Adds a tensor map of bf16 with a 128-byte swizzle.
  void addMap(int32_t operand, std::vector<int32_t> dims, int32_t stride,
              std::vector<int32_t> box) {
    ShapejitRtCudaParameter map = {};
    map.kind = ShapejitRtCudaTensorMap;
    map.operand = operand;
    map.element = ShapejitRtCudaBF16;
    map.rank = 2;
    std::copy(dims.begin(), dims.end(), map.dims);
    std::copy(box.begin(), box.end(), map.box);
    map.strides[0] = stride;
    map.swizzle = 128;
    map.promotion = 256;
    parameters.push_back(map);
  }

  void addSize(int32_t value, int32_t bytes) {
    ShapejitRtCudaParameter size = {};
    size.kind = ShapejitRtCudaSize;
    size.value = value;
    size.bytes = bytes;
    parameters.push_back(size);
  }

  void addWorkspace(int64_t bytesPerCta, int64_t zeroed, int64_t leastCtas = 0) {
    ShapejitRtCudaParameter workspace = {};
    workspace.kind = ShapejitRtCudaWorkspace;
    workspace.bytesPerCta = bytesPerCta;
    workspace.zeroed = zeroed;
    workspace.leastCtas = leastCtas;
    parameters.push_back(workspace);
  }

  /// Puts it into block form: the parameters one after the other in an entry.
  void toBlock() {
    int64_t offset = 0;
    for (ShapejitRtCudaParameter &parameter : parameters) {
      parameter.offset = offset;
      offset += parameter.kind == ShapejitRtCudaTensorMap ? 128 : 8;
    }
    interface.block = 1;
    interface.blockBytes = 512;
  }

  int32_t tryMake(ShapejitRtCudaModule *module, ShapejitRtCudaKernel **kernel) {
    interface.values = names.data();
    interface.valueCount = static_cast<int32_t>(names.size());
    interface.tiles = tiles.data();
    interface.tileCount = static_cast<int32_t>(tiles.size());
    interface.parameters = parameters.data();
    interface.parameterCount = static_cast<int32_t>(parameters.size());
    return shapejitRtCudaKernelCreate(module, &interface, kernel);
  }
};

/// A module of `Gemm` on a device, released at the end.
struct LoadedModule {
  ShapejitRtCudaModule *handle = nullptr;

  explicit LoadedModule(int32_t device = 0) {
    CHECK(shapejitRtCudaModuleLoad(device, Gemm::kImage, &handle) == ShapejitRtCudaOk);
  }
  ~LoadedModule() {
    if (handle)
      shapejitRtCudaModuleRelease(handle);
  }
};

/// A kernel made from a description, released at the end.
struct MadeKernel {
  ShapejitRtCudaKernel *handle = nullptr;

  MadeKernel(LoadedModule &module, Gemm gemm) {
    if (gemm.tryMake(module.handle, &handle) != ShapejitRtCudaOk) {
      std::fprintf(stderr, "%s\n", shapejitRtCudaError());
      std::abort();
    }
  }
  ~MadeKernel() { shapejitRtCudaKernelRelease(handle); }

  int32_t launch(int64_t m, int64_t n, int64_t k, void *stream = nullptr,
                 void *workspace = nullptr) const {
    int64_t values[] = {m, n, k, k, n, n};
    void *operands[] = {at(0x10000), at(0x20000), at(0x30000)};
    return shapejitRtCudaLaunch(handle, operands, values, workspace, stream);
  }

  static void *at(uint64_t address) { return reinterpret_cast<void *>(address); }
};

inline bool errorHas(const std::string &part) {
  if (std::string(shapejitRtCudaError()).find(part) != std::string::npos)
    return true;
  std::fprintf(stderr, "\"%s\" is not in \"%s\"\n", part.c_str(), shapejitRtCudaError());
  return false;
}

inline const FakeLaunch &lastLaunch() { return *fakeLaunchAt(fakeLaunches() - 1); }

template <typename T> T parameterOf(const FakeLaunch &launch, int index) {
  T value;
  std::memcpy(&value, launch.bytes + launch.offsets[index], sizeof(value));
  return value;
}

/// Opens the fake driver.
inline void openFake(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(shapejitRtCudaOpen(argv[1]) == ShapejitRtCudaOk);
}

/// Fails if the driver was used in a way that it must not be.
inline void checkViolations() {
  if (*fakeViolations() == 0)
    return;
  std::fprintf(stderr, "%s", fakeViolations());
  std::abort();
}

#endif // SHAPEJIT_RT_TEST_CUDA_KERNELS_H
