// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Instance.h"

#include <cstdlib>
#include <new>

using namespace shapejit::rt;
using namespace shapejit::rt::cuda;

// Regions.

Region::~Region() { unbind(); }

Status Region::bind(Device &device, const int64_t *words, int32_t callWords) {
  unbind();
  void *memory = std::malloc(sizeof(PatchTable));
  if (!memory)
    return fail(ShapejitRtCudaDriverFailed, "no memory for the record of a region");
  table = new (memory) PatchTable;
  Status status = table->make(device, launches, words, callWords);
  if (status)
    unbind();
  return status;
}

void Region::unbind() {
  if (!table)
    return;
  table->~PatchTable();
  std::free(table);
  table = nullptr;
}

// Blocks.

Status Block::make(Device &device, const Region &region, MemoryRef &shared, Block &made) {
  const PatchTable &table = *region.table;
  WorkspaceNeed need = table.workspaceNeed();
  int64_t bytes = WorkspaceTable::kZeros + need.scratch;
  abi::Address middle = 0;
  if (need.zeroed || need.scratch) {
    // Kernels of a stream run in turn, and leave what must be zero at zero.
    if (!shared || shared->bytes < bytes) {
      DeviceMemory *workspace;
      SHAPEJIT_TRY(DeviceMemory::make(device, bytes, workspace));
      MemoryRef owner(workspace);
      SHAPEJIT_TRY(workspace->zero(WorkspaceTable::kZeros));
      shared = owner;
    }
    made.workspace = shared;
    middle = shared->address + WorkspaceTable::kZeros;
  }
  DeviceMemory *block;
  SHAPEJIT_TRY(table.makeBlock(device, middle, block));
  made.memory = MemoryRef(block);
  return ShapejitRtCudaOk;
}

// Instances.

Slot::~Slot() {
  if (executable)
    driver.cuGraphExecDestroy(executable);
  if (graph)
    driver.cuGraphDestroy(graph);
}

Instance::~Instance() {
  if (last)
    driver.cuEventDestroy(last);
  Slot *slot = slots.load(std::memory_order_acquire);
  while (slot) {
    Slot *next = slot->next;
    slot->~Slot();
    std::free(slot);
    slot = next;
  }
}

Slot *Instance::find(const Region &region) const {
  Slot *slot = slots.load(std::memory_order_acquire);
  while (slot && slot->region != &region)
    slot = slot->next;
  return slot;
}

Status Instance::slotFor(Device &device, Region &region, Slot *&slot) {
  slot = find(region);
  if (slot)
    return ShapejitRtCudaOk;
  void *memory = std::malloc(sizeof(Slot));
  if (!memory)
    return fail(ShapejitRtCudaDriverFailed, "no memory for the record of a graph");
  Slot *made = new (memory) Slot;
  made->region = &region;
  if (Status status = Block::make(device, region, workspace, made->block)) {
    made->~Slot();
    std::free(made);
    return status;
  }
  made->next = slots.load(std::memory_order_relaxed);
  slots.store(made, std::memory_order_release);
  slot = made;
  return ShapejitRtCudaOk;
}

Status Instance::run(Call &call) {
  Lock held(lock);
  // Whichever thread comes first, in case several call in the new stream.
  if (handedOver)
    SHAPEJIT_CUDA_TRY(cuStreamWaitEvent, call.stream, last, 0);
  handedOver = false;
  recorded.store(false, std::memory_order_relaxed);
  SHAPEJIT_TRY(queue(call));
  return call.record ? record(call.stream) : ShapejitRtCudaOk;
}

Status Instance::queue(Call &call) {
  Region &region = call.region;
  Slot *slot;
  SHAPEJIT_TRY(slotFor(*call.head.module->device, region, slot));
  HeadCall head(call.head, *region.table, slot->block.memory->address, call.words);
  int state = slot->state.load(std::memory_order_acquire);
  call.byGraph = state == Slot::kReady;
  if (call.byGraph) {
    SHAPEJIT_TRY(head.set(slot->executable, slot->head));
    SHAPEJIT_CUDA_TRY(cuGraphLaunch, slot->executable, call.stream);
    return ShapejitRtCudaOk;
  }
  if (state == Slot::kPlain)
    slot->state.compare_exchange_strong(state, Slot::kWanted, std::memory_order_acq_rel);
  call.missing = state == Slot::kPlain || state == Slot::kWanted;
  return launchRegion(head, region, slot->block, call.stream);
}

Status Instance::record(abi::Stream stream) {
  if (!last) {
    AllowDuringCapture allow;
    SHAPEJIT_CUDA_TRY(cuEventCreate, &last, abi::kEventDisableTiming);
  }
  SHAPEJIT_CUDA_TRY(cuEventRecord, last, stream);
  recorded.store(true, std::memory_order_release);
  return ShapejitRtCudaOk;
}

Status shapejit::rt::cuda::launchRegion(HeadCall &head, const Region &region, const Block &block,
                                        abi::Stream stream) {
  if (Status status = head.launch(stream)) {
    addToError(" (the head kernel of a program)");
    return status;
  }
  // The first one waits for the head kernel to end. With that the entries of all are there, so the
  // others may start, and read theirs, while the one ahead of them runs.
  bool first = true;
  for (const RegionLaunch &launch : region.launches.launches) {
    abi::Address entry = block.memory->address + static_cast<abi::Address>(launch.entry);
    void *parameters[] = {&entry};
    const ShapejitRtCudaKernel &kernel = *launch.kernel;
    Status status = kernel.submit(launch.ctas, stream, parameters, first);
    SHAPEJIT_TRY(kernel.explain(status, nullptr, launch.ctas));
    first = false;
  }
  return ShapejitRtCudaOk;
}

/// Adds the edges to a node. One that waits for a single kernel may start while that one runs, and
/// then waits by itself. One that waits for several starts when all have ended: mixed edges save
/// little where branches meet. So does one that waits for the head kernel alone, which reads what
/// that writes before its own wait. So whatever starts, the head kernel has ended.
static Status addEdges(abi::Graph graph, const RegionLaunch &launch,
                       const Array<abi::GraphNode> &nodes, abi::GraphNode head,
                       abi::GraphNode node) {
  abi::GraphEdgeData edge = {};
  if (launch.waitCount == 0) {
    SHAPEJIT_CUDA_TRY(cuGraphAddDependencies, graph, &head, &node, &edge, 1);
    return ShapejitRtCudaOk;
  }
  if (launch.waitCount == 1 && launch.kernel->programmatic) {
    edge.from_port = abi::kPortProgrammatic;
    edge.type = abi::kDependencyProgrammatic;
  }
  for (int32_t i = 0; i < launch.waitCount; ++i)
    SHAPEJIT_CUDA_TRY(cuGraphAddDependencies, graph, &nodes[launch.waits[i]], &node, &edge, 1);
  return ShapejitRtCudaOk;
}

Status shapejit::rt::cuda::makeGraph(HeadCall &head, const Region &region, const Block &block,
                                     abi::Graph &graph, abi::GraphNode &headNode) {
  if (!driver.cuGraphAddDependencies)
    return fail(ShapejitRtCudaNoDriver,
                "graphs of programs need a driver that supports CUDA 12.3 or later: update it");
  SHAPEJIT_CUDA_TRY(cuGraphCreate, &graph, 0);
  SHAPEJIT_TRY(head.addTo(graph, headNode));
  Array<abi::GraphNode> nodes;
  for (const RegionLaunch &launch : region.launches.launches) {
    abi::Address entry = block.memory->address + static_cast<abi::Address>(launch.entry);
    const ShapejitRtCudaKernel &kernel = *launch.kernel;
    abi::GraphNode node;
    Status status = kernel.addTo(graph, launch.ctas, entry, node);
    SHAPEJIT_TRY(kernel.explain(status, nullptr, launch.ctas));
    SHAPEJIT_TRY(addEdges(graph, launch, nodes, headNode, node));
    SHAPEJIT_TRY(nodes.append(node));
  }
  return ShapejitRtCudaOk;
}

Status Instance::makeGraph(const Head &head, Region &region) {
  Device &device = *head.module->device;
  Slot *slot;
  {
    Lock held(lock);
    SHAPEJIT_TRY(slotFor(device, region, slot));
  }
  // What the words are is said at every launch.
  auto *words = static_cast<int64_t *>(std::calloc(static_cast<size_t>(head.words), 8));
  if (!words)
    return fail(ShapejitRtCudaDriverFailed, "no memory for the words of a call");
  HeadCall call(head, *region.table, slot->block.memory->address, words);
  // Calls may go on meanwhile: they do not look at the graph until it is ready.
  auto make = [&] {
    SHAPEJIT_TRY(cuda::makeGraph(call, region, slot->block, slot->graph, slot->head));
    SHAPEJIT_CUDA_TRY(cuGraphInstantiateWithFlags, &slot->executable, slot->graph, 0);
    // Else its first launch would do it.
    SHAPEJIT_CUDA_TRY(cuGraphUpload, slot->executable, device.stream);
    SHAPEJIT_CUDA_TRY(cuStreamSynchronize, device.stream);
    return Status{ShapejitRtCudaOk};
  };
  Status status = make();
  std::free(words);
  slot->state.store(status ? Slot::kFailed : Slot::kReady, std::memory_order_release);
  return status;
}
