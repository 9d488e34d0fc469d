// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels: a function of a module, and how it is called.

#ifndef SHAPEJIT_RT_CUDA_KERNEL_H
#define SHAPEJIT_RT_CUDA_KERNEL_H

#include "Module.h"
#include "TensorMap.h"

namespace shapejit::rt::cuda {

/// A parameter of a kernel, validated.
struct Parameter {
  ShapejitRtCudaParameterKind kind;
  int32_t operand = 0; ///< maps, pointer
  int32_t value = 0;   ///< size
  int32_t bytes = 0;   ///< that it takes
  int32_t offset = 0;  ///< into the entry in block form, else into a launch's parameters
  TensorMapPlan map;

  bool isMap() const { return kind == ShapejitRtCudaTensorMap || kind == ShapejitRtCudaIm2colMap; }
  bool hasOperand() const { return isMap() || kind == ShapejitRtCudaPointer; }
};

} // namespace shapejit::rt::cuda

/// Immutable once made, so that any number of threads can launch it.
struct ShapejitRtCudaKernel {
  using Status = shapejit::rt::cuda::Status;

  /// As many pointers as a launch's parameters have room for.
  static constexpr int32_t kMaxParameters = 512;
  static constexpr int32_t kMaxValues = 256;
  static constexpr int32_t kMaxTiles = 8;
  /// Bytes of the parameters of a launch that every device and driver takes.
  static constexpr int32_t kMaxParameterBytes = 4096;

  static Status create(ShapejitRtCudaModule &module, const ShapejitRtCudaInterface &interface,
                       ShapejitRtCudaKernel *&kernel);
  void destroy();

  /// CTAs of a launch; 0: there is nothing to launch.
  Status grid(const int64_t *values, uint32_t &ctas) const;

  /// Writes all parameters at their offsets. `to` is aligned to 64 bytes.
  Status write(void *const *operands, const int64_t *values, void *workspace,
               unsigned char *to) const;

  /// What a launch of so many CTAs needs as its workspace.
  shapejit::rt::cuda::WorkspaceNeed workspaceNeed(uint32_t ctas) const;

  /// Hands a launch to the driver; the device's context is current. `depends` says whether it waits
  /// for all that was launched before, although the kernel is programmatic.
  Status submit(uint32_t ctas, shapejit::rt::cuda::abi::Stream stream, void **parameters,
                bool depends = false) const;

  /// Adds a launch in block form to a graph. `entry` is copied.
  Status addTo(shapejit::rt::cuda::abi::Graph graph, uint32_t ctas,
               shapejit::rt::cuda::abi::Address entry,
               shapejit::rt::cuda::abi::GraphNode &node) const;

  /// Adds to the thread's error text, if `status` is a failure, which call of which kernel failed.
  /// `values` may be null, `ctas` 0. Returns `status`.
  Status explain(Status status, const int64_t *values, uint32_t ctas) const;

  ShapejitRtCudaModule *module = nullptr;
  shapejit::rt::cuda::abi::Function function = nullptr;
  ShapejitRtCudaKernelInfo info = {};
  const char *entry = nullptr;
  int32_t threads = 0;
  int32_t sharedBytes = 0;
  int32_t cluster = 1;
  int32_t residentClusters = 0; ///< the most of a persistent grid; 0: it is not persistent
  bool block = false;
  bool programmatic = false;
  bool takesWorkspace = false;
  int32_t blockBytes = 0; ///< of the entry in block form
  int64_t workspaceBytesPerCta = 0;
  int64_t workspaceLeastCtas = 0;
  int64_t workspaceZeroed = 0;
  int32_t parameterCount = 0;
  int32_t tileCount = 0;
  int32_t valueCount = 0;
  shapejit::rt::cuda::Parameter *parameters = nullptr;
  ShapejitRtCudaTile tiles[kMaxTiles];
  const char *values[kMaxValues]; ///< their names

private:
  Status describe(const ShapejitRtCudaInterface &interface);
  Status copyNames(const ShapejitRtCudaInterface &interface);
  Status addParameter(const ShapejitRtCudaParameter &given, const ShapejitRtCudaInterface &from);
  Status addWorkspace(const ShapejitRtCudaParameter &given, const char *what);
  Status place(shapejit::rt::cuda::Parameter &parameter, int64_t offset, int64_t blockBytes,
               const char *what);
  Status checkValue(int32_t value, const char *what) const;
  Status load();
  Status checkParameters() const;
  Status setLimits();
  Status countResident(int32_t ctasPerSm);
  Status writeSize(const shapejit::rt::cuda::Parameter &parameter, const int64_t *values,
                   unsigned char *to) const;

  int32_t parameterBytes = 0; ///< of a launch, so far
  char *names = nullptr;      ///< owns all names
};

#endif // SHAPEJIT_RT_CUDA_KERNEL_H
