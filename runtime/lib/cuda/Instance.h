// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a program needs for the calls of one stream: blocks and executable graphs.

#ifndef SHAPEJIT_RT_CUDA_INSTANCE_H
#define SHAPEJIT_RT_CUDA_INSTANCE_H

#include "Head.h"
#include "Lock.h"

#include <atomic>

namespace shapejit::rt::cuda {

/// A region of a program.
struct Region {
  int64_t key = 0;
  RegionLaunches launches;
  PatchTable *table = nullptr; ///< for the words that are bound; null if none are
  Region *next = nullptr;

  ~Region();

  /// Makes the table anew.
  Status bind(Device &device, const int64_t *words, int32_t callWords);
  void unbind();
};

/// The block of a region, and the scratch memory of its kernels.
struct Block {
  /// `shared` is scratch memory that may serve, and receives what does.
  static Status make(Device &device, const Region &region, MemoryRef &shared, Block &made);

  MemoryRef memory;
  MemoryRef workspace;
};

/// A region in an instance. The block and the graph do not change once they are there.
struct Slot {
  enum State { kPlain, kWanted, kReady, kFailed };

  ~Slot();

  Region *region = nullptr;
  Block block;
  abi::Graph graph = nullptr;
  abi::GraphExec executable = nullptr;
  abi::GraphNode head = nullptr;
  std::atomic<int> state{kPlain}; ///< of the graph
  Slot *next = nullptr;
};

/// The calls of one stream. Slots are only ever added, and may be looked at without the lock.
class Instance {
public:
  Instance() = default;
  ~Instance();

  Slot *find(const Region &region) const;

  /// The slot of a region, made if there is none. Called with the lock.
  Status slotFor(Device &device, Region &region, Slot *&slot);

  /// A call: what it needs, and what became of it.
  struct Call {
    const Head &head;
    Region &region;
    const int64_t *words;
    abi::Stream stream;
    bool record = false;  ///< whether another stream may want to wait for it
    bool byGraph = false; ///< whether its graph did it
    bool missing = false; ///< whether that is still to be made
  };

  /// Queues a call.
  Status run(Call &call);

  /// Whether a stream can be made to wait for the last call.
  bool canHandOver() const { return recorded.load(std::memory_order_acquire); }

  /// Has the next call wait for the last one, which was in another stream. Called with the lock of
  /// the list, while nobody uses the instance.
  void handOver() { handedOver = true; }

  /// Makes the graph of a region; by one thread at a time.
  Status makeGraph(const Head &head, Region &region);

  /// What the list of instances keeps about it, with the lock of that.
  uint64_t stream = 0; ///< id; 0: none has it yet
  uint64_t lastUse = 0;
  int32_t users = 0;     ///< threads that work with it now
  bool complete = false; ///< whether it gets a graph of every region, not of those called only
  Instance *next = nullptr;

  std::atomic<Slot *> slots{nullptr};

private:
  Status queue(Call &call);
  Status record(abi::Stream stream);

  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  MemoryRef workspace;
  abi::Event last = nullptr;         ///< the end of the last call that was recorded
  std::atomic<bool> recorded{false}; ///< whether that is the last call
  bool handedOver = false;           ///< whether the stream of the next call has to wait for it
};

/// Makes the graph of a region: what `launchRegion` launches, and how it waits. A graph is made of
/// nodes rather than by a capture: while a stream is captured, no thread can wait for the device.
/// Whatever is made is the caller's, also after a failure.
Status makeGraph(HeadCall &head, const Region &region, const Block &block, abi::Graph &graph,
                 abi::GraphNode &headNode);

/// Launches a region kernel by kernel, the head kernel first.
Status launchRegion(HeadCall &head, const Region &region, const Block &block, abi::Stream stream);

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_INSTANCE_H
