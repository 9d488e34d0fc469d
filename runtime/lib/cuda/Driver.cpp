// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Driver.h"

#include "Lock.h"

#include <atomic>
#include <cstring>
#include <dlfcn.h>

using namespace shapejit::rt::cuda;

Driver shapejit::rt::cuda::driver;

namespace {

pthread_mutex_t openLock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<bool> isOpen{false};
char openPath[4096];

Status find(abi::GetProcAddress getProcAddress, const char *name, int version, void **function) {
  *function = nullptr;
  abi::Result result =
      getProcAddress(name, function, version, abi::kGetProcAddressLegacyStream, nullptr);
  if (result == abi::kSuccess && *function)
    return ShapejitRtCudaOk;
  return fail(ShapejitRtCudaNoDriver,
              "the driver has no %s of CUDA %d.%d; it must support CUDA "
              "%d.%d or later: update it",
              name, version / 1000, version % 1000 / 10, kLeastDriver / 1000,
              kLeastDriver % 1000 / 10);
}

Status fill(abi::GetProcAddress getProcAddress, Driver &table) {
#define SHAPEJIT_CUDA_FIND(name, version, parameters)                                              \
  SHAPEJIT_TRY(find(getProcAddress, #name, version, reinterpret_cast<void **>(&table.name)));
  SHAPEJIT_CUDA_REQUIRED(SHAPEJIT_CUDA_FIND)
#undef SHAPEJIT_CUDA_FIND
#define SHAPEJIT_CUDA_FIND(name, version, parameters)                                              \
  find(getProcAddress, #name, version, reinterpret_cast<void **>(&table.name));
  SHAPEJIT_CUDA_OPTIONAL(SHAPEJIT_CUDA_FIND)
#undef SHAPEJIT_CUDA_FIND
  return ShapejitRtCudaOk;
}

/// Opens the library and initializes the driver. A library once opened stays open.
Status load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    return fail(ShapejitRtCudaNoDriver, "the CUDA driver %s cannot be opened: %s", path,
                reason ? reason : "no reason given");
  }
  // Its name has a version, since an older function of the same name has other parameters.
  auto getProcAddress =
      reinterpret_cast<abi::GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (!getProcAddress)
    return fail(ShapejitRtCudaNoDriver,
                "%s is no CUDA driver, or one older than CUDA %d.%d: update it", path,
                kLeastDriver / 1000, kLeastDriver % 1000 / 10);
  SHAPEJIT_TRY(fill(getProcAddress, driver));
  if (abi::Result result = driver.cuInit(0)) {
    failDriver("cuInit", result);
    return ShapejitRtCudaNoDriver;
  }
  return ShapejitRtCudaOk;
}

} // namespace

Status shapejit::rt::cuda::openDriver(const char *path) {
  Lock lock(openLock);
  if (!isOpen.load(std::memory_order_relaxed)) {
    if (strlen(path) >= sizeof(openPath))
      return fail(ShapejitRtCudaNoDriver, "the path of the CUDA driver is too long");
    SHAPEJIT_TRY(load(path));
    strcpy(openPath, path);
    isOpen.store(true, std::memory_order_release);
  }
  if (strcmp(openPath, path) != 0)
    return fail(ShapejitRtCudaNoDriver,
                "the CUDA driver %s is in use and cannot be exchanged for %s in this process",
                openPath, path);
  return ShapejitRtCudaOk;
}

Status shapejit::rt::cuda::requireDriver() {
  if (isOpen.load(std::memory_order_acquire))
    return ShapejitRtCudaOk;
  return fail(ShapejitRtCudaNoDriver, "the CUDA driver was not opened");
}
