// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The fake driver's launches, streams, events and graphs; see FakeCuda.h.

#include "FakeDriver.h"
#include "HeadTwin.h"

#include <algorithm>
#include <cstring>

namespace fake {

namespace {

Node nodeOf(const abi::LaunchConfig &config, abi::Function function, void **parameters) {
  Node node = {function, config, 0, 0, {}, {}};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == abi::kClusterDimension)
      node.cluster = config.attrs[i].value.clusterDim.x;
    if (config.attrs[i].id == abi::kProgrammaticStreamSerialization)
      node.programmatic =
          static_cast<uint32_t>(config.attrs[i].value.programmaticStreamSerializationAllowed);
  }
  node.config.attrs = nullptr;
  for (size_t i = 0; i < function->parameters.size(); ++i) {
    auto *from = static_cast<const unsigned char *>(parameters[i]);
    node.parameters.emplace_back(from, from + function->parameters[i]);
  }
  return node;
}

void record(const Node &node, abi::Stream stream, abi::GraphHandle *graph,
            abi::GraphExecHandle *executable) {
  FakeLaunch launch = {};
  const abi::LaunchConfig &config = node.config;
  snprintf(launch.entry, sizeof(launch.entry), "%s", node.function->name.c_str());
  const uint32_t grid[] = {config.gridDimX, config.gridDimY, config.gridDimZ};
  const uint32_t block[] = {config.blockDimX, config.blockDimY, config.blockDimZ};
  std::copy(grid, grid + 3, launch.grid);
  std::copy(block, block + 3, launch.block);
  launch.sharedBytes = config.sharedMemBytes;
  launch.cluster = node.cluster;
  launch.programmatic = node.programmatic;
  launch.carveout = node.function->carveout;
  launch.stream = stream;
  launch.graph = graph;
  launch.executable = executable;
  size_t used = 0;
  for (const std::vector<unsigned char> &parameter : node.parameters) {
    launch.offsets[launch.parameters++] = static_cast<uint32_t>(used);
    memcpy(launch.bytes + used, parameter.data(),
           std::min(parameter.size(), sizeof(launch.bytes) - used));
    used = std::min(used + parameter.size(), sizeof(launch.bytes));
  }
  launch.waitCount = static_cast<uint32_t>(node.waits.size());
  std::copy_n(node.waits.begin(), std::min<size_t>(node.waits.size(), 16), launch.waits);
  if (launches.size() == 10000)
    launches.pop_front();
  launches.push_back(launch);
}

/// Who wrote a block last, by its address: a stream, and when.
struct Use {
  unsigned long long stream;
  uint64_t time;
};
std::map<abi::Address, Use> uses;
uint64_t now = 0;

/// A block is not rewritten before another stream is known to have read it.
void checkUse(abi::Address block, abi::StreamHandle *stream) {
  auto found = uses.find(block);
  if (found != uses.end() && found->second.stream != stream->id &&
      stream->waited[found->second.stream] < found->second.time)
    violate("a block is changed while another stream may still read it");
  uses[block] = {stream->id, ++now};
}

/// What a kernel does, if it is one that runs. `stream` is null where nobody knows it.
void execute(const Node &node, abi::StreamHandle *stream) {
  if (node.function->name.rfind("head_", 0) != 0)
    return;
  abi::Address block;
  memcpy(&block, node.parameters[1].data(), sizeof(block));
  if (stream)
    checkUse(block, stream);
  std::vector<const void *> parameters;
  for (const std::vector<unsigned char> &parameter : node.parameters)
    parameters.push_back(parameter.data());
  runHead(parameters.data(), node.config.gridDimX * node.config.blockDimX);
}

Node nodeOf(const abi::KernelNodeParams &params) {
  abi::LaunchConfig config = {};
  config.gridDimX = params.gridDimX;
  config.gridDimY = params.gridDimY;
  config.gridDimZ = params.gridDimZ;
  config.blockDimX = params.blockDimX;
  config.blockDimY = params.blockDimY;
  config.blockDimZ = params.blockDimZ;
  config.sharedMemBytes = params.sharedMemBytes;
  return nodeOf(config, params.func, params.kernelParams);
}

} // namespace

void forgetUse(abi::Address address, size_t bytes) {
  uses.erase(uses.lower_bound(address), uses.lower_bound(address + bytes));
}

void replay(const std::vector<Node> &nodes, abi::Stream handle, abi::StreamHandle *stream,
            abi::GraphExecHandle *executable) {
  for (const Node &node : nodes) {
    record(node, handle, nullptr, executable);
    execute(node, stream);
  }
}

abi::Result cuLaunchKernelEx(const abi::LaunchConfig *config, abi::Function function,
                             void **parameters, void **extra) {
  ++heldLaunches;
  while (holdsLaunches)
    std::this_thread::yield();
  --heldLaunches;
  ENTER(cuLaunchKernelEx);
  abi::StreamHandle *stream = resolve(config->hStream);
  if (!stream || stream->context != current() || function->module->context != current())
    return abi::kInvalidHandle;
  Node node = nodeOf(*config, function, parameters);
  uint32_t cluster = std::max(node.cluster, 1u);
  if (extra || config->gridDimX == 0 || config->gridDimX % cluster != 0 ||
      static_cast<int>(config->sharedMemBytes) > function->dynamicSharedBytes ||
      (cluster > 8 && !function->nonPortable))
    return kInvalidValue;
  if (stream->spoiled)
    return kCaptureInvalidatedResult;
  record(node, config->hStream, stream->graph, nullptr);
  if (stream->graph)
    stream->graph->nodes.push_back(node);
  else
    execute(node, stream);
  return 0;
}

abi::Result cuStreamCreate(abi::Stream *stream, unsigned flags) {
  ENTER_UNSAFE(cuStreamCreate);
  if (flags != abi::kStreamNonBlocking)
    violate("a stream of the library waits for the default stream");
  *stream = new abi::StreamHandle{current(), nextId++};
  streams.insert(*stream);
  return 0;
}

abi::Result cuEventCreate(abi::Event *event, unsigned flags) {
  ENTER_UNSAFE(cuEventCreate);
  if (flags != abi::kEventDisableTiming)
    return kInvalidValue;
  *event = *events.insert(new abi::EventHandle).first;
  return 0;
}

abi::Result cuEventRecord(abi::Event event, abi::Stream handle) {
  ENTER(cuEventRecord);
  abi::StreamHandle *stream = resolve(handle);
  if (!events.count(event) || !stream || stream->context != current())
    return abi::kInvalidHandle;
  if (stream->graph)
    violate("an event was recorded in a capture");
  event->stream = stream->id;
  event->time = now;
  event->waited = stream->waited;
  return 0;
}

abi::Result cuStreamWaitEvent(abi::Stream handle, abi::Event event, unsigned flags) {
  ENTER(cuStreamWaitEvent);
  abi::StreamHandle *stream = resolve(handle);
  if (!events.count(event) || flags || !stream)
    return abi::kInvalidHandle;
  if (!event->stream)
    violate("a stream waits for an event that was never recorded");
  auto merge = [stream](unsigned long long other, uint64_t time) {
    uint64_t &until = stream->waited[other];
    until = std::max(until, time);
  };
  merge(event->stream, event->time);
  for (const auto &[other, time] : event->waited)
    merge(other, time);
  return 0;
}

abi::Result cuEventDestroy(abi::Event event) {
  ENTER(cuEventDestroy);
  if (!events.erase(event)) {
    violate("an event was destroyed twice");
    return kInvalidValue;
  }
  delete event;
  return 0;
}

abi::Result cuStreamSynchronize(abi::Stream handle) {
  ENTER_UNSAFE(cuStreamSynchronize);
  abi::StreamHandle *stream = resolve(handle);
  return stream && !stream->graph ? 0 : kCaptureUnsupported;
}

abi::Result cuStreamGetId(abi::Stream handle, unsigned long long *id) {
  ENTER(cuStreamGetId);
  abi::StreamHandle *stream = resolve(handle);
  if (!stream)
    return abi::kInvalidHandle;
  if (stream->graph) {
    stream->spoiled = true;
    violate("cuStreamGetId was called for a stream that is captured");
    return kCaptureUnsupported;
  }
  *id = stream->id;
  return 0;
}

abi::Result cuStreamGetCaptureInfo(abi::Stream handle, abi::CaptureStatus *status, uint64_t *id,
                                   abi::Graph *graph, const abi::GraphNode **, size_t *) {
  ENTER(cuStreamGetCaptureInfo);
  abi::StreamHandle *stream = resolve(handle);
  if (!stream)
    return abi::kInvalidHandle;
  *status = stream->spoiled ? abi::kCaptureInvalidated
            : stream->graph ? abi::kCaptureActive
                            : abi::kCaptureNone;
  *id = stream->capture;
  *graph = stream->graph;
  return 0;
}

abi::Result cuThreadExchangeStreamCaptureMode(abi::CaptureMode *mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, threadMode);
  return 0;
}

abi::Result cuUserObjectCreate(abi::UserObject *made, void *object, void (*destroy)(void *),
                               unsigned references, unsigned flags) {
  ENTER(cuUserObjectCreate);
  if (flags != abi::kUserObjectNoDestructorSync)
    return kInvalidValue;
  *made = new abi::UserObjectHandle{object, destroy, static_cast<int>(references)};
  return 0;
}

abi::Result cuUserObjectRelease(abi::UserObject object, unsigned count) {
  ENTER(cuUserObjectRelease);
  object->references -= static_cast<int>(count);
  if (object->references == 0) {
    object->destroy(object->object);
    delete object;
  }
  return 0;
}

abi::Result cuGraphRetainUserObject(abi::Graph graph, abi::UserObject object, unsigned count,
                                    unsigned flags) {
  ENTER(cuGraphRetainUserObject);
  if (count != 1 || flags != abi::kGraphUserObjectMove)
    return kInvalidValue;
  graph->held->objects.push_back(object);
  return 0;
}

abi::Result cuGraphCreate(abi::Graph *graph, unsigned flags) {
  ENTER(cuGraphCreate);
  if (flags)
    return kInvalidValue;
  *graph = *graphs.insert(new abi::GraphHandle).first;
  return 0;
}

abi::Result cuGraphAddKernelNode(abi::GraphNode *node, abi::Graph graph, const abi::GraphNode *,
                                 size_t dependencies, const abi::KernelNodeParams *params) {
  ENTER(cuGraphAddKernelNode);
  if (!graphs.count(graph) || dependencies || params->extra || params->kern ||
      params->gridDimX == 0 ||
      static_cast<int>(params->sharedMemBytes) > params->func->dynamicSharedBytes)
    return kInvalidValue;
  if (params->func->module->context != current())
    return abi::kInvalidHandle;
  graph->handles.push_back({graph, graph->nodes.size()});
  graph->nodes.push_back(nodeOf(*params));
  *node = &graph->handles.back();
  return 0;
}

abi::Result cuGraphKernelNodeSetAttribute(abi::GraphNode node, abi::LaunchAttributeId attribute,
                                          const abi::LaunchAttributeValue *value) {
  ENTER(cuGraphKernelNodeSetAttribute);
  if (attribute != abi::kClusterDimension || !graphs.count(node->graph))
    return kInvalidValue;
  Node &made = node->graph->nodes[node->number];
  made.cluster = value->clusterDim.x;
  return made.config.gridDimX % made.cluster == 0 ? 0 : kInvalidValue;
}

/// Edges lead to nodes that were added later. Those to one node are all programmatic or all full.
abi::Result cuGraphAddDependencies(abi::Graph graph, const abi::GraphNode *from,
                                   const abi::GraphNode *to, const abi::GraphEdgeData *edges,
                                   size_t count) {
  ENTER(cuGraphAddDependencies);
  for (size_t i = 0; i < count; ++i) {
    if (from[i]->graph != graph || to[i]->graph != graph || edges[i].to_port ||
        (edges[i].type == abi::kDependencyProgrammatic) !=
            (edges[i].from_port == abi::kPortProgrammatic))
      return kInvalidValue;
    if (to[i]->number <= from[i]->number)
      violate("an edge of a graph leads back");
    Node &node = graph->nodes[to[i]->number];
    bool programmatic = edges[i].type == abi::kDependencyProgrammatic;
    if (!node.waits.empty() && (programmatic || node.programmatic))
      violate("a node waits for several, and not for their ends");
    if (programmatic && from[i]->number == 0)
      violate("a kernel does not wait for the end of the head kernel");
    node.waits.push_back(static_cast<uint32_t>(from[i]->number));
    node.programmatic = programmatic;
  }
  return 0;
}

abi::Result cuGraphInstantiateWithFlags(abi::GraphExec *executable, abi::Graph graph,
                                        unsigned long long flags) {
  ENTER_UNSAFE(cuGraphInstantiateWithFlags);
  if (flags || !graphs.count(graph))
    return kInvalidValue;
  for (size_t i = 1; i < graph->nodes.size(); ++i)
    if (graph->nodes[i].waits.empty())
      violate("a node of a graph does not wait for the head kernel");
  *executable = new abi::GraphExecHandle{graph, graph->held, graph->nodes};
  executables.insert(*executable);
  return 0;
}

abi::Result cuGraphUpload(abi::GraphExec executable, abi::Stream stream) {
  ENTER(cuGraphUpload);
  return executables.count(executable) && resolve(stream) ? 0 : kInvalidValue;
}

abi::Result cuGraphLaunch(abi::GraphExec executable, abi::Stream handle) {
  ++heldLaunches;
  while (holdsLaunches)
    std::this_thread::yield();
  --heldLaunches;
  ENTER(cuGraphLaunch);
  abi::StreamHandle *stream = resolve(handle);
  if (!executables.count(executable) || !stream || stream->context != current())
    return abi::kInvalidHandle;
  if (stream->graph)
    violate("an executable graph was launched into a capture");
  replay(executable->nodes, handle, stream, executable);
  return 0;
}

abi::Result cuGraphExecKernelNodeSetParams(abi::GraphExec executable, abi::GraphNode node,
                                           const abi::KernelNodeParams *params) {
  ENTER(cuGraphExecKernelNodeSetParams);
  if (!executables.count(executable))
    return abi::kInvalidHandle;
  if (!graphs.count(executable->source) || node->graph != executable->source) {
    violate("a node is changed whose graph is gone");
    return kInvalidValue;
  }
  if (params->extra || params->kern)
    return kInvalidValue;
  executable->nodes[node->number] = nodeOf(*params);
  return 0;
}

abi::Result cuGraphExecDestroy(abi::GraphExec executable) {
  std::shared_ptr<Held> held; // ended without the lock
  {
    ENTER(cuGraphExecDestroy);
    if (!executables.erase(executable)) {
      violate("an executable graph was destroyed twice");
      return kInvalidValue;
    }
    held = executable->held;
    delete executable;
  }
  return 0;
}

abi::Result cuGraphDestroy(abi::Graph graph) {
  std::shared_ptr<Held> held;
  {
    ENTER(cuGraphDestroy);
    if (!graphs.erase(graph)) {
      violate("a graph was destroyed twice");
      return kInvalidValue;
    }
    held = graph->held;
    delete graph;
  }
  return 0;
}

} // namespace fake
