// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Scratch memory of kernels.
//
// Launches in one stream run one after the other, so they share a buffer; streams that run at the
// same time must not. The same holds for graphs, which may run at any time: each stream of a
// capture gets a buffer that belongs to the graph.
//
// A kernel wants the first bytes of its workspace to be zero, and leaves them so; the rest it
// leaves as it likes. Kernels differ in how many bytes that is. So a buffer has a part that is
// always zero, whose end is where the scratch part starts, and each kernel gets the address that
// lies its number of zero bytes before that:
//
//     base                             base + kZeros
//     |  zeros                        |  scratch                 |
//                     ^ workspace of a kernel

#ifndef SHAPEJIT_RT_CUDA_WORKSPACE_H
#define SHAPEJIT_RT_CUDA_WORKSPACE_H

#include "Capture.h"

#include <pthread.h>

namespace shapejit::rt::cuda {

struct Device;

/// What a launch needs.
struct WorkspaceNeed {
  int64_t zeroed = 0;
  int64_t scratch = 0; ///< bytes after the zeros
};

/// The buffers of a device.
class WorkspaceTable {
public:
  /// The most zero bytes of a kernel.
  static constexpr int64_t kZeros = 64 << 10;

  struct Buffer;

  constexpr WorkspaceTable() = default;

  /// Frees the buffers of all streams, and those of graphs that are gone.
  Status release(Device &device);

  /// What the buffers take.
  Status use(Device &device, ShapejitRtCudaWorkspaceUse &use);

  /// Sets the limit of all devices.
  static void setLimit(int64_t bytes);

private:
  friend class WorkspaceLease;

  /// Who a buffer is for. The number is unique for the life of the process, unlike the handle of a
  /// stream; but no more than the handle can be had while the stream is captured, which it
  /// outlives.
  struct Owner {
    uint64_t capture = 0; ///< 0: the stream itself
    uint64_t stream = 0;

    static Status of(abi::Stream stream, const Capture &capture, Owner &owner);
    bool operator==(const Owner &other) const {
      return capture == other.capture && stream == other.stream;
    }
  };

  Status find(Device &device, abi::Stream stream, const Capture &capture, const WorkspaceNeed &need,
              Buffer *&buffer);
  Status make(Device &device, abi::Stream stream, const Capture &capture, const Owner &owner,
              int64_t scratch, Buffer *&buffer);
  Status allocate(int64_t bytes, abi::Address &base);
  Status makeRoom(int64_t bytes);
  template <typename Condition> Status freeIf(Condition condition);
  Status freeAbandoned();
  int64_t bytesOfStreams() const;
  Buffer *oldestOfStreams() const;

  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Buffer *first = nullptr;
  uint64_t uses = 0; ///< leases so far, the clock of the buffers' last use
};

/// A buffer for one launch, which is made while this is in scope. The buffer is not freed
/// meanwhile. The table is not locked: the driver makes a launch wait while a stream's queue is
/// full, and what the queue waits for may be a thread that launches too.
class WorkspaceLease {
public:
  WorkspaceLease() = default;
  ~WorkspaceLease();
  WorkspaceLease(const WorkspaceLease &) = delete;
  WorkspaceLease &operator=(const WorkspaceLease &) = delete;

  /// The workspace for a launch in a stream; the device's context is current.
  Status take(Device &device, abi::Stream stream, const Capture &capture, const WorkspaceNeed &need,
              void *&workspace);

private:
  WorkspaceTable::Buffer *buffer = nullptr;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_WORKSPACE_H
