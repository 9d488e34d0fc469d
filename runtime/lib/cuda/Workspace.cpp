// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Workspace.h"

#include "Device.h"
#include "Lock.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

using namespace shapejit::rt::cuda;

namespace {

/// Buffers come in multiples of this, so that they seldom have to grow.
constexpr int64_t kGranule = 1 << 20;

std::atomic<int64_t> limit{INT64_C(1) << 30};

int64_t roundUp(int64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

} // namespace

struct WorkspaceTable::Buffer {
  Owner owner;
  abi::Address base;
  int64_t scratch;
  uint64_t lastUse;
  /// Leases; taken with the lock held, given back without.
  std::atomic<int32_t> leases{0};
  /// No launch gets it any more: its graph is gone, or it was to be freed while it was leased.
  std::atomic<bool> abandoned{false};
  Buffer *next;

  bool isFor(const Owner &wanted) const { return owner == wanted && !isAbandoned(); }
  bool isOfGraph() const { return owner.capture != 0; }
  bool isLeased() const { return leases.load(std::memory_order_acquire) != 0; }
  bool isAbandoned() const { return abandoned.load(std::memory_order_acquire); }
  int64_t bytes() const { return kZeros + scratch; }

  static void abandon(void *buffer) {
    static_cast<Buffer *>(buffer)->abandoned.store(true, std::memory_order_release);
  }
};

Status WorkspaceTable::Owner::of(abi::Stream stream, const Capture &capture, Owner &owner) {
  if (capture.id) {
    owner = {capture.id, reinterpret_cast<uint64_t>(stream)};
    return ShapejitRtCudaOk;
  }
  // This would spoil a capture.
  unsigned long long id;
  SHAPEJIT_CUDA_TRY(cuStreamGetId, stream, &id);
  owner = {0, id};
  return ShapejitRtCudaOk;
}

// Everything below is called with the lock held and the context current, unless it takes the lock.

/// Frees the buffers for which `condition` holds, later if they are leased. The driver waits for
/// launches that use them.
template <typename Condition> Status WorkspaceTable::freeIf(Condition condition) {
  AllowDuringCapture allow;
  for (Buffer **link = &first; *link;) {
    Buffer *buffer = *link;
    if (!condition(*buffer)) {
      link = &buffer->next;
      continue;
    }
    if (buffer->isLeased()) {
      Buffer::abandon(buffer);
      link = &buffer->next;
      continue;
    }
    SHAPEJIT_CUDA_TRY(cuMemFree, buffer->base);
    *link = buffer->next;
    std::free(buffer);
  }
  return ShapejitRtCudaOk;
}

Status WorkspaceTable::freeAbandoned() {
  return freeIf([](const Buffer &buffer) { return buffer.isAbandoned(); });
}

int64_t WorkspaceTable::bytesOfStreams() const {
  int64_t bytes = 0;
  for (const Buffer *buffer = first; buffer; buffer = buffer->next)
    bytes += buffer->isOfGraph() ? 0 : buffer->bytes();
  return bytes;
}

WorkspaceTable::Buffer *WorkspaceTable::oldestOfStreams() const {
  Buffer *oldest = nullptr;
  for (Buffer *buffer = first; buffer; buffer = buffer->next)
    if (!buffer->isOfGraph() && !buffer->isAbandoned() &&
        (!oldest || buffer->lastUse < oldest->lastUse))
      oldest = buffer;
  return oldest;
}

/// Frees buffers of streams, those first that were not used for longest, until so many bytes more
/// are within the limit. Leased ones may exceed it until their launches are made.
Status WorkspaceTable::makeRoom(int64_t bytes) {
  int64_t most = limit.load(std::memory_order_relaxed);
  if (bytes > most)
    return fail(ShapejitRtCudaBadCall,
                "a workspace of %lld bytes is above the limit of %lld bytes: set a higher one",
                static_cast<long long>(bytes), static_cast<long long>(most));
  while (bytesOfStreams() + bytes > most) {
    const Buffer *oldest = oldestOfStreams();
    if (!oldest)
      break;
    SHAPEJIT_TRY(freeIf([oldest](const Buffer &buffer) { return &buffer == oldest; }));
  }
  return ShapejitRtCudaOk;
}

/// Allocates memory, at the cost of the other streams' buffers if there is not enough.
Status WorkspaceTable::allocate(int64_t bytes, abi::Address &base) {
  AllowDuringCapture allow;
  abi::Result result = driver.cuMemAlloc(&base, static_cast<size_t>(bytes));
  if (result == abi::kOutOfMemory) {
    SHAPEJIT_TRY(freeIf([](const Buffer &buffer) { return !buffer.isOfGraph(); }));
    result = driver.cuMemAlloc(&base, static_cast<size_t>(bytes));
  }
  if (result == abi::kSuccess)
    return ShapejitRtCudaOk;
  failDriver("cuMemAlloc", result);
  addToError(", for a workspace of %lld bytes", static_cast<long long>(bytes));
  return ShapejitRtCudaDriverFailed;
}

/// Zeroes the first part of a new buffer: in the order of its stream, or at once if a graph is to
/// use it, which must not do so again with every run.
static Status zero(const Device &device, abi::Stream stream, const Capture &capture,
                   abi::Address base) {
  if (!capture.id) {
    SHAPEJIT_CUDA_TRY(cuMemsetD8Async, base, 0, WorkspaceTable::kZeros, stream);
    return ShapejitRtCudaOk;
  }
  AllowDuringCapture allow;
  SHAPEJIT_CUDA_TRY(cuMemsetD8Async, base, 0, WorkspaceTable::kZeros, device.stream);
  SHAPEJIT_CUDA_TRY(cuStreamSynchronize, device.stream);
  return ShapejitRtCudaOk;
}

Status WorkspaceTable::make(Device &device, abi::Stream stream, const Capture &capture,
                            const Owner &owner, int64_t scratch, Buffer *&buffer) {
  SHAPEJIT_TRY(freeAbandoned());
  if (!capture.id) {
    // One that is too small goes first; the driver waits for the launches that use it.
    SHAPEJIT_TRY(freeIf([&](const Buffer &old) { return old.isFor(owner); }));
    SHAPEJIT_TRY(makeRoom(kZeros + scratch));
  }
  void *memory = std::malloc(sizeof(Buffer));
  if (!memory)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a workspace's record");
  abi::Address base;
  Status status = allocate(kZeros + scratch, base);
  if (!status && (status = zero(device, stream, capture, base)))
    driver.cuMemFree(base);
  if (status) {
    std::free(memory);
    return status;
  }
  buffer = new (memory) Buffer{owner, base, scratch, 0, {0}, {false}, first};
  first = buffer;
  // If the graph cannot hold it, it counts as abandoned.
  return capture.id ? capture.hold(buffer, Buffer::abandon) : ShapejitRtCudaOk;
}

Status WorkspaceTable::find(Device &device, abi::Stream stream, const Capture &capture,
                            const WorkspaceNeed &need, Buffer *&buffer) {
  Owner owner;
  SHAPEJIT_TRY(Owner::of(stream, capture, owner));
  int64_t largest = 0;
  for (buffer = first; buffer; buffer = buffer->next) {
    if (!buffer->isFor(owner))
      continue;
    if (buffer->scratch >= need.scratch)
      return ShapejitRtCudaOk;
    largest = std::max(largest, buffer->scratch);
  }
  // Kernel nodes of a graph keep the buffers that they have; those of streams grow. Twice as large
  // at least, unless that is above the limit, so that this happens a few times only.
  int64_t scratch = roundUp(need.scratch);
  int64_t room = limit.load(std::memory_order_relaxed) - kZeros;
  if (2 * largest <= room)
    scratch = std::max(scratch, 2 * largest);
  else if (need.scratch <= room)
    scratch = std::min(scratch, room);
  return make(device, stream, capture, owner, scratch, buffer);
}

Status WorkspaceTable::release(Device &device) {
  Lock held(lock);
  UseDevice use(device);
  SHAPEJIT_TRY(use.status);
  SHAPEJIT_TRY(freeAbandoned());
  return freeIf([](const Buffer &buffer) { return !buffer.isOfGraph(); });
}

Status WorkspaceTable::use(Device &device, ShapejitRtCudaWorkspaceUse &result) {
  Lock held(lock);
  UseDevice use(device);
  SHAPEJIT_TRY(use.status);
  SHAPEJIT_TRY(freeAbandoned());
  result = {};
  for (const Buffer *buffer = first; buffer; buffer = buffer->next) {
    result.bytes += buffer->bytes();
    result.graphBytes += buffer->isOfGraph() ? buffer->bytes() : 0;
    ++result.buffers;
  }
  return ShapejitRtCudaOk;
}

void WorkspaceTable::setLimit(int64_t bytes) { limit.store(bytes, std::memory_order_relaxed); }

Status WorkspaceLease::take(Device &device, abi::Stream stream, const Capture &capture,
                            const WorkspaceNeed &need, void *&workspace) {
  WorkspaceTable &table = device.workspaces;
  Lock held(table.lock);
  WorkspaceTable::Buffer *found;
  SHAPEJIT_TRY(table.find(device, stream, capture, need, found));
  found->leases.fetch_add(1, std::memory_order_relaxed);
  found->lastUse = ++table.uses;
  buffer = found;
  abi::Address address = found->base + WorkspaceTable::kZeros - need.zeroed;
  workspace = reinterpret_cast<void *>(address);
  return ShapejitRtCudaOk;
}

WorkspaceLease::~WorkspaceLease() {
  if (buffer)
    buffer->leases.fetch_sub(1, std::memory_order_release);
}
