// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Device memory with several owners: programs, their graphs, and graphs of callers.

#ifndef SHAPEJIT_RT_CUDA_MEMORY_H
#define SHAPEJIT_RT_CUDA_MEMORY_H

#include "Capture.h"
#include "Device.h"

#include <atomic>
#include <utility>

namespace shapejit::rt::cuda {

/// A buffer. With its last reference it is retired; retired ones are freed by whichever call comes
/// next that may do so, and the driver then waits for work that uses them.
class DeviceMemory {
public:
  /// Allocates a buffer, aligned to 256 bytes, with one reference. May be called during captures.
  static Status make(Device &device, int64_t bytes, DeviceMemory *&memory);

  /// Copies from the host, and waits for the copy. Nothing that is queued may use the buffer yet.
  Status write(const void *from, int64_t count);

  /// Zeroes the first bytes; otherwise the same.
  Status zero(int64_t count);

  void retain() { references.fetch_add(1, std::memory_order_relaxed); }

  /// Calls nothing of the driver.
  void release();

  /// Makes the graph of a capture keep the buffer.
  Status holdBy(const Capture &capture);

  /// Frees what was retired.
  static void freeRetired();

  Device *device = nullptr;
  abi::Address address = 0;
  int64_t bytes = 0;

private:
  std::atomic<int32_t> references{1};
  DeviceMemory *nextRetired = nullptr;
};

/// An owner's reference to a buffer, or none.
class MemoryRef {
public:
  MemoryRef() = default;
  /// Takes a reference over.
  explicit MemoryRef(DeviceMemory *owned) : memory(owned) {}
  MemoryRef(const MemoryRef &other) : memory(other.memory) {
    if (memory)
      memory->retain();
  }
  MemoryRef &operator=(MemoryRef other) {
    std::swap(memory, other.memory);
    return *this;
  }
  ~MemoryRef() {
    if (memory)
      memory->release();
  }

  DeviceMemory *get() const { return memory; }
  DeviceMemory *operator->() const { return memory; }
  explicit operator bool() const { return memory != nullptr; }

private:
  DeviceMemory *memory = nullptr;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_MEMORY_H
