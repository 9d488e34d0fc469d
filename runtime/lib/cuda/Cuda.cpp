// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Kernel.h"
#include "Memory.h"

using namespace shapejit::rt::cuda;

const char *shapejitRtCudaError(void) { return errorText(); }

int32_t shapejitRtCudaOpen(const char *path) { return openDriver(path); }

int32_t shapejitRtCudaDriverVersion(int32_t *version) {
  SHAPEJIT_TRY(requireDriver());
  SHAPEJIT_CUDA_TRY(cuDriverGetVersion, version);
  return ShapejitRtCudaOk;
}

int32_t shapejitRtCudaDeviceCount(int32_t *count) {
  SHAPEJIT_TRY(requireDriver());
  SHAPEJIT_CUDA_TRY(cuDeviceGetCount, count);
  return ShapejitRtCudaOk;
}

int32_t shapejitRtCudaDeviceInfo(int32_t device, ShapejitRtCudaDeviceInfo *info) {
  return describeDevice(device, *info);
}

int32_t shapejitRtCudaModuleLoad(int32_t device, const void *image, ShapejitRtCudaModule **module) {
  return ShapejitRtCudaModule::load(device, image, *module);
}

void shapejitRtCudaModuleRelease(ShapejitRtCudaModule *module) {
  module->release();
  ShapejitRtCudaModule::unloadRetired();
}

int32_t shapejitRtCudaModules(void) {
  ShapejitRtCudaModule::unloadRetired();
  return ShapejitRtCudaModule::count();
}

int32_t shapejitRtCudaKernelCreate(ShapejitRtCudaModule *module,
                                   const ShapejitRtCudaInterface *interface,
                                   ShapejitRtCudaKernel **kernel) {
  return ShapejitRtCudaKernel::create(*module, *interface, *kernel);
}

void shapejitRtCudaKernelRelease(ShapejitRtCudaKernel *kernel) { kernel->destroy(); }

void shapejitRtCudaKernelInfo(const ShapejitRtCudaKernel *kernel, ShapejitRtCudaKernelInfo *info) {
  *info = kernel->info;
}

int32_t shapejitRtCudaWorkspaceUse(int32_t number, ShapejitRtCudaWorkspaceUse *use) {
  *use = {};
  Device *device = Device::ifOpen(number);
  return device ? device->workspaces.use(*device, *use) : ShapejitRtCudaOk;
}

void shapejitRtCudaWorkspaceLimit(int64_t bytes) { WorkspaceTable::setLimit(bytes); }

int32_t shapejitRtCudaWorkspaceRelease(int32_t number) {
  Device *device = Device::ifOpen(number);
  return device ? device->workspaces.release(*device) : ShapejitRtCudaOk;
}

int32_t shapejitRtCudaMemoryAllocate(int32_t number, int64_t bytes, ShapejitRtCudaMemory **memory,
                                     void **address) {
  Device *device;
  SHAPEJIT_TRY(Device::open(number, device));
  DeviceMemory *made;
  SHAPEJIT_TRY(DeviceMemory::make(*device, bytes, made));
  *memory = reinterpret_cast<ShapejitRtCudaMemory *>(made);
  *address = reinterpret_cast<void *>(made->address);
  return ShapejitRtCudaOk;
}

void shapejitRtCudaMemoryRelease(ShapejitRtCudaMemory *memory) {
  reinterpret_cast<DeviceMemory *>(memory)->release();
  DeviceMemory::freeRetired();
}
