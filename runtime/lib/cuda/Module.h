// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Machine code in the memory of a device.

#ifndef SHAPEJIT_RT_CUDA_MODULE_H
#define SHAPEJIT_RT_CUDA_MODULE_H

#include "Capture.h"
#include "Device.h"

#include <atomic>

/// References are held by whoever loaded the module, by its kernels and by graphs. With the last
/// one it is retired; retired modules are unloaded by whichever call comes next that may do so.
struct ShapejitRtCudaModule {
  using Status = shapejit::rt::cuda::Status;

  static Status load(int32_t device, const void *image, ShapejitRtCudaModule *&module);

  void retain() { references.fetch_add(1, std::memory_order_relaxed); }

  /// Calls nothing of the driver.
  void release();

  /// Unloads all modules that were retired.
  static void unloadRetired();

  /// Modules in device memory.
  static int32_t count();

  /// Makes the graph that a launch is captured into refer to the module.
  Status holdBy(const shapejit::rt::cuda::Capture &capture);

  shapejit::rt::cuda::Device *device = nullptr;
  shapejit::rt::cuda::abi::Module handle = nullptr;

private:
  std::atomic<int32_t> references{1};
  /// The capture whose graph refers to the module already, so that each graph does so once, as a
  /// rule, rather than once a kernel node.
  std::atomic<uint64_t> heldByCapture{0};
  ShapejitRtCudaModule *nextRetired = nullptr;
};

#endif // SHAPEJIT_RT_CUDA_MODULE_H
