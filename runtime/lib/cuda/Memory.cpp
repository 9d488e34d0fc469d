// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Memory.h"

#include <cstdlib>
#include <new>

using namespace shapejit::rt::cuda;

namespace {

/// Buffers without references, last one first.
std::atomic<DeviceMemory *> retired{nullptr};

void releaseMemory(void *memory) { static_cast<DeviceMemory *>(memory)->release(); }

} // namespace

Status DeviceMemory::make(Device &device, int64_t bytes, DeviceMemory *&memory) {
  freeRetired();
  UseDevice use(device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  void *record = std::malloc(sizeof(DeviceMemory));
  if (!record)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a buffer's record");
  abi::Address address;
  if (abi::Result result = driver.cuMemAlloc(&address, static_cast<size_t>(bytes))) {
    std::free(record);
    failDriver("cuMemAlloc", result);
    addToError(", for %lld bytes of a program", static_cast<long long>(bytes));
    return ShapejitRtCudaDriverFailed;
  }
  memory = new (record) DeviceMemory;
  memory->device = &device;
  memory->address = address;
  memory->bytes = bytes;
  return ShapejitRtCudaOk;
}

Status DeviceMemory::write(const void *from, int64_t count) {
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  SHAPEJIT_CUDA_TRY(cuMemcpyHtoDAsync, address, from, static_cast<size_t>(count), device->stream);
  SHAPEJIT_CUDA_TRY(cuStreamSynchronize, device->stream);
  return ShapejitRtCudaOk;
}

Status DeviceMemory::zero(int64_t count) {
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  SHAPEJIT_CUDA_TRY(cuMemsetD8Async, address, 0, static_cast<size_t>(count), device->stream);
  SHAPEJIT_CUDA_TRY(cuStreamSynchronize, device->stream);
  return ShapejitRtCudaOk;
}

void DeviceMemory::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  nextRetired = retired.load(std::memory_order_relaxed);
  while (!retired.compare_exchange_weak(nextRetired, this, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

Status DeviceMemory::holdBy(const Capture &capture) {
  retain();
  return capture.hold(this, releaseMemory);
}

void DeviceMemory::freeRetired() {
  if (!retired.load(std::memory_order_relaxed))
    return;
  DeviceMemory *memory = retired.exchange(nullptr, std::memory_order_acquire);
  while (memory) {
    DeviceMemory *next = memory->nextRetired;
    UseDevice use(*memory->device);
    AllowDuringCapture allow;
    // There is nobody to report a failure to: the process ends, or the context broke before.
    if (!use.status)
      driver.cuMemFree(memory->address);
    std::free(memory);
    memory = next;
  }
}
