// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Module.h"

#include <cstdlib>
#include <new>

using namespace shapejit::rt::cuda;

namespace {

/// Modules without references, last one first.
std::atomic<ShapejitRtCudaModule *> retired{nullptr};
std::atomic<int32_t> loaded{0};

void releaseModule(void *module) { static_cast<ShapejitRtCudaModule *>(module)->release(); }

/// Loads the image; a failure has what the driver's assembler said, if the image is PTX.
Status loadImage(const void *image, abi::Module &handle) {
  char log[1024] = "";
  abi::JitOption options[] = {abi::kErrorLogBuffer, abi::kErrorLogBufferSizeBytes};
  void *values[] = {log, reinterpret_cast<void *>(sizeof(log) - 1)};
  abi::Result result = driver.cuModuleLoadDataEx(&handle, image, 2, options, values);
  if (result == abi::kSuccess)
    return ShapejitRtCudaOk;
  failDriver("cuModuleLoadDataEx", result);
  if (log[0])
    addToError("\n%s", log);
  return ShapejitRtCudaDriverFailed;
}

} // namespace

Status ShapejitRtCudaModule::load(int32_t number, const void *image,
                                  ShapejitRtCudaModule *&module) {
  unloadRetired();
  Device *device;
  SHAPEJIT_TRY(Device::open(number, device));
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  abi::Module handle;
  SHAPEJIT_TRY(loadImage(image, handle));
  void *memory = std::malloc(sizeof(ShapejitRtCudaModule));
  if (!memory) {
    driver.cuModuleUnload(handle);
    return fail(ShapejitRtCudaDriverFailed, "no memory for a module's record");
  }
  module = new (memory) ShapejitRtCudaModule;
  module->device = device;
  module->handle = handle;
  loaded.fetch_add(1, std::memory_order_relaxed);
  return ShapejitRtCudaOk;
}

void ShapejitRtCudaModule::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  nextRetired = retired.load(std::memory_order_relaxed);
  while (!retired.compare_exchange_weak(nextRetired, this, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
}

void ShapejitRtCudaModule::unloadRetired() {
  if (!retired.load(std::memory_order_relaxed))
    return;
  ShapejitRtCudaModule *module = retired.exchange(nullptr, std::memory_order_acquire);
  while (module) {
    ShapejitRtCudaModule *next = module->nextRetired;
    UseDevice use(*module->device);
    AllowDuringCapture allow;
    // There is nobody to report a failure to: the process ends, or the context broke before.
    if (!use.status)
      driver.cuModuleUnload(module->handle);
    loaded.fetch_sub(1, std::memory_order_relaxed);
    std::free(module);
    module = next;
  }
}

int32_t ShapejitRtCudaModule::count() { return loaded.load(std::memory_order_relaxed); }

Status ShapejitRtCudaModule::holdBy(const Capture &capture) {
  if (heldByCapture.load(std::memory_order_acquire) == capture.id)
    return ShapejitRtCudaOk;
  retain();
  SHAPEJIT_TRY(capture.hold(this, releaseModule));
  heldByCapture.store(capture.id, std::memory_order_release);
  return ShapejitRtCudaOk;
}
