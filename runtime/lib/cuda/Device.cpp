// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Device.h"

#include "Lock.h"

using namespace shapejit::rt::cuda;

namespace {

Device devices[Device::kMaxDevices];
pthread_mutex_t openLock = PTHREAD_MUTEX_INITIALIZER;

/// The driver's handle of a device.
Status find(int32_t number, abi::DeviceId &id) {
  SHAPEJIT_TRY(requireDriver());
  int count = 0;
  SHAPEJIT_CUDA_TRY(cuDeviceGetCount, &count);
  if (number < 0 || number >= count)
    return fail(ShapejitRtCudaNoDriver,
                "there is no CUDA device %d: the driver shows %d, numbered "
                "from 0",
                number, count);
  SHAPEJIT_CUDA_TRY(cuDeviceGet, &id, number);
  return ShapejitRtCudaOk;
}

} // namespace

Status Device::open(int32_t number, Device *&device) {
  abi::DeviceId id;
  SHAPEJIT_TRY(find(number, id));
  if (number >= kMaxDevices)
    return fail(ShapejitRtCudaNoDriver, "CUDA device %d: only the first %d can be used", number,
                kMaxDevices);
  device = &devices[number];
  Lock lock(openLock);
  if (device->isOpen.load(std::memory_order_relaxed))
    return ShapejitRtCudaOk;
  device->number = number;
  SHAPEJIT_TRY(device->prepare(id));
  device->isOpen.store(true, std::memory_order_release);
  return ShapejitRtCudaOk;
}

Device *Device::ifOpen(int32_t number) {
  if (number < 0 || number >= kMaxDevices)
    return nullptr;
  return devices[number].isOpen.load(std::memory_order_acquire) ? &devices[number] : nullptr;
}

// Called again after a failure: what is there already is kept.
Status Device::prepare(abi::DeviceId id) {
  SHAPEJIT_CUDA_TRY(cuDeviceGetAttribute, &multiprocessors, abi::kMultiprocessorCount, id);
  SHAPEJIT_CUDA_TRY(cuDeviceGetAttribute, &sharedBytesPerBlock, abi::kMaxSharedMemoryPerBlockOptin,
                    id);
  if (!context)
    SHAPEJIT_CUDA_TRY(cuDevicePrimaryCtxRetain, &context, id);
  UseDevice use(*this);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  if (!stream)
    SHAPEJIT_CUDA_TRY(cuStreamCreate, &stream, abi::kStreamNonBlocking);
  if (!nothing)
    SHAPEJIT_CUDA_TRY(cuMemAlloc, &nothing, kNothingBytes);
  SHAPEJIT_CUDA_TRY(cuMemsetD8Async, nothing, 0, kNothingBytes, stream);
  SHAPEJIT_CUDA_TRY(cuStreamSynchronize, stream);
  return ShapejitRtCudaOk;
}

UseDevice::UseDevice(const Device &device) {
  // Most callers have it current already, and asking is cheaper than pushing.
  abi::Context current = nullptr;
  if (driver.cuCtxGetCurrent(&current) == abi::kSuccess && current == device.context)
    return;
  if (abi::Result result = driver.cuCtxPushCurrent(device.context))
    status = failDriver("cuCtxPushCurrent", result);
  else
    pushed = true;
}

UseDevice::~UseDevice() {
  abi::Context popped;
  if (pushed)
    driver.cuCtxPopCurrent(&popped);
}

Status shapejit::rt::cuda::describeDevice(int32_t number, ShapejitRtCudaDeviceInfo &info) {
  abi::DeviceId id;
  SHAPEJIT_TRY(find(number, id));
  SHAPEJIT_CUDA_TRY(cuDeviceGetName, info.name, sizeof(info.name), id);
  info.name[sizeof(info.name) - 1] = 0;
  const struct {
    abi::DeviceAttribute attribute;
    int32_t *value;
  } attributes[] = {
      {abi::kComputeCapabilityMajor, &info.major},
      {abi::kComputeCapabilityMinor, &info.minor},
      {abi::kMultiprocessorCount, &info.multiprocessors},
      {abi::kMaxSharedMemoryPerBlockOptin, &info.sharedBytesPerBlock},
      {abi::kMaxSharedMemoryPerMultiprocessor, &info.sharedBytesPerMultiprocessor},
      {abi::kL2CacheSize, &info.cacheBytes},
  };
  for (auto [attribute, value] : attributes)
    SHAPEJIT_CUDA_TRY(cuDeviceGetAttribute, value, attribute, id);
  size_t bytes = 0;
  SHAPEJIT_CUDA_TRY(cuDeviceTotalMem, &bytes, id);
  info.memoryBytes = static_cast<int64_t>(bytes);
  return ShapejitRtCudaOk;
}
