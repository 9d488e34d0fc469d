// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// See FakeCuda.h. Built as a shared library that stands for libcuda.

#include "FakeCuda.h"

#include "../lib/cuda/Abi.h"
#include "HeadTwin.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace abi = shapejit::rt::cuda::abi;

struct abi::ContextHandle {
  int device;
};
struct abi::FunctionHandle {
  std::string name;
  int registers, sharedBytes, maxThreads;
  std::vector<size_t> parameters;
  abi::ModuleHandle *module;
  int dynamicSharedBytes = 48 << 10;
  bool nonPortable = false;
};
struct abi::ModuleHandle {
  abi::ContextHandle *context;
  std::map<std::string, abi::FunctionHandle> functions;
};
struct abi::UserObjectHandle {
  void *object;
  void (*destroy)(void *);
  int references;
};
/// A kernel node: a launch without its stream.
struct Node {
  abi::Function function;
  abi::LaunchConfig config;
  uint32_t cluster, programmatic;
  std::vector<std::vector<unsigned char>> parameters;
};

/// User objects of a graph and of what was instantiated from it, ended with the last of these.
struct Held {
  std::vector<abi::UserObjectHandle *> objects;
  ~Held();
};
struct abi::GraphNodeHandle {
  abi::GraphHandle *graph;
  size_t number;
};
struct abi::GraphHandle {
  std::shared_ptr<Held> held = std::make_shared<Held>();
  std::vector<Node> nodes;
  std::deque<abi::GraphNodeHandle> handles; ///< of the nodes, if they were added one by one
  size_t edges = 0;
};
struct abi::GraphExecHandle {
  abi::GraphHandle *source;
  std::shared_ptr<Held> held;
  std::vector<Node> nodes;
};
struct abi::EventHandle {
  unsigned long long stream = 0; ///< where it was recorded last
};
struct abi::StreamHandle {
  abi::ContextHandle *context;
  unsigned long long id;
  abi::GraphHandle *graph = nullptr; ///< that it is captured into
  uint64_t capture = 0;
  abi::CaptureMode mode = abi::kCaptureGlobal;
  std::thread::id capturer{};
  bool spoiled = false;
};

static thread_local bool inDestructor = false;

Held::~Held() {
  std::thread([this] {
    inDestructor = true;
    for (abi::UserObjectHandle *object : objects) {
      object->destroy(object->object);
      delete object;
    }
  }).join();
}

namespace {

constexpr int kDevices = 2;
constexpr int kMultiprocessors = 132;
constexpr int kInvalidValue = 1, kInvalidContext = 201, kCaptureUnsupported = 900,
              kCaptureInvalidatedResult = 901;

std::recursive_mutex lock;
using Locked = std::lock_guard<std::recursive_mutex>;

abi::ContextHandle contexts[kDevices] = {{0}, {1}};
abi::StreamHandle legacyStreams[kDevices] = {{&contexts[0], 1}, {&contexts[1], 2}};
thread_local std::vector<abi::ContextHandle *> stack;
thread_local abi::CaptureMode threadMode = abi::kCaptureGlobal;

struct Failure {
  int result, skipped;
};
std::map<std::string, Failure> failures;
std::map<std::string, int> calls;
std::string violations;
std::deque<FakeLaunch> launches;
std::set<abi::ModuleHandle *> modules;
std::set<abi::StreamHandle *> streams;
std::set<abi::EventHandle *> events;
std::set<abi::GraphHandle *> graphs;
std::set<abi::GraphExecHandle *> executables;
std::map<abi::Address, size_t> memory;
std::atomic<int> version{13000};
std::atomic<bool> holdsLaunches{false};
std::atomic<int> heldLaunches{0};
unsigned long long nextId = 100;

void violate(const std::string &what) { violations += what + "\n"; }

abi::ContextHandle *current() { return stack.empty() ? nullptr : stack.back(); }

/// Counts a call and says whether it is to fail.
abi::Result enter(const char *name) {
  ++calls[name];
  if (inDestructor)
    violate(std::string(name) + " was called while a user object is ended");
  auto found = failures.find(name);
  if (found == failures.end() || found->second.skipped-- > 0)
    return 0;
  int result = found->second.result;
  failures.erase(found);
  return result;
}

#define ENTER(name)                                                                                \
  Locked locked(lock);                                                                             \
  if (abi::Result failure = enter(#name))                                                          \
  return failure

/// The same for a call that a capture forbids.
#define ENTER_UNSAFE(name)                                                                         \
  ENTER(name);                                                                                     \
  if (abi::Result failure = forbid(#name))                                                         \
  return failure

abi::Result forbid(const char *name) {
  if (threadMode == abi::kCaptureRelaxed)
    return 0;
  for (abi::StreamHandle *stream : streams) {
    bool own = stream->capturer == std::this_thread::get_id();
    bool all = stream->mode == abi::kCaptureGlobal && threadMode == abi::kCaptureGlobal;
    if (!stream->graph || stream->mode == abi::kCaptureRelaxed || (!own && !all))
      continue;
    stream->spoiled = true;
    violate(std::string(name) + " was called during a capture");
    return kCaptureUnsupported;
  }
  return 0;
}

abi::StreamHandle *resolve(abi::Stream stream) {
  if (stream)
    return streams.count(stream) ? stream : nullptr;
  return current() ? &legacyStreams[current()->device] : nullptr;
}

// The driver's functions, by name.

abi::Result cuInit(unsigned) {
  ENTER(cuInit);
  return 0;
}

abi::Result cuGetErrorName(abi::Result result, const char **name) {
  *name = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
  return 0;
}

abi::Result cuGetErrorString(abi::Result, const char **text) {
  *text = "made up";
  return 0;
}

abi::Result cuDriverGetVersion(int *result) {
  ENTER(cuDriverGetVersion);
  *result = version;
  return 0;
}

abi::Result cuDeviceGetCount(int *count) {
  ENTER(cuDeviceGetCount);
  *count = kDevices;
  return 0;
}

abi::Result cuDeviceGet(abi::DeviceId *device, int number) {
  ENTER(cuDeviceGet);
  *device = number;
  return 0;
}

abi::Result cuDeviceGetName(char *name, int length, abi::DeviceId device) {
  ENTER(cuDeviceGetName);
  snprintf(name, static_cast<size_t>(length), "Fake %d", device);
  return 0;
}

abi::Result cuDeviceGetAttribute(int *value, abi::DeviceAttribute attribute, abi::DeviceId) {
  ENTER(cuDeviceGetAttribute);
  const std::map<int, int> values = {{abi::kMultiprocessorCount, kMultiprocessors},
                                     {abi::kL2CacheSize, 50 << 20},
                                     {abi::kComputeCapabilityMajor, 9},
                                     {abi::kComputeCapabilityMinor, 0},
                                     {abi::kMaxSharedMemoryPerMultiprocessor, 228 << 10},
                                     {abi::kMaxSharedMemoryPerBlockOptin, 227 << 10}};
  *value = values.at(attribute);
  return 0;
}

abi::Result cuDeviceTotalMem(size_t *bytes, abi::DeviceId) {
  ENTER(cuDeviceTotalMem);
  *bytes = size_t{80} << 30;
  return 0;
}

abi::Result cuDevicePrimaryCtxRetain(abi::Context *context, abi::DeviceId device) {
  ENTER(cuDevicePrimaryCtxRetain);
  *context = &contexts[device];
  return 0;
}

abi::Result cuCtxGetCurrent(abi::Context *context) {
  ENTER(cuCtxGetCurrent);
  *context = current();
  return 0;
}

abi::Result cuCtxPushCurrent(abi::Context context) {
  ENTER(cuCtxPushCurrent);
  stack.push_back(context);
  return 0;
}

abi::Result cuCtxPopCurrent(abi::Context *context) {
  ENTER(cuCtxPopCurrent);
  *context = current();
  stack.pop_back();
  return 0;
}

abi::Result cuModuleLoadDataEx(abi::Module *module, const void *image, unsigned options,
                               abi::JitOption *names, void **values) {
  ENTER_UNSAFE(cuModuleLoadDataEx);
  if (!current())
    return kInvalidContext;
  std::istringstream lines(static_cast<const char *>(image));
  std::string line;
  std::getline(lines, line);
  if (line != "fake") {
    for (unsigned i = 0; i < options; ++i)
      if (names[i] == abi::kErrorLogBuffer)
        strcpy(static_cast<char *>(values[i]), "line 1: not a fake");
    return abi::kNoBinaryForGpu;
  }
  auto *made = new abi::ModuleHandle{current(), {}};
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    abi::FunctionHandle function = {};
    words >> function.name >> function.registers >> function.sharedBytes >> function.maxThreads;
    for (size_t bytes; words >> bytes;)
      function.parameters.push_back(bytes);
    function.module = made;
    function.dynamicSharedBytes = 48 << 10;
    made->functions[function.name] = function;
  }
  modules.insert(made);
  *module = made;
  return 0;
}

abi::Result cuModuleUnload(abi::Module module) {
  ENTER_UNSAFE(cuModuleUnload);
  if (!modules.erase(module)) {
    violate("a module was unloaded twice");
    return abi::kInvalidHandle;
  }
  if (module->context != current())
    violate("a module was unloaded in another context");
  delete module;
  return 0;
}

abi::Result cuModuleGetFunction(abi::Function *function, abi::Module module, const char *name) {
  ENTER_UNSAFE(cuModuleGetFunction);
  auto found = module->functions.find(name);
  if (found == module->functions.end())
    return abi::kNotFound;
  *function = &found->second;
  return 0;
}

abi::Result cuFuncGetAttribute(int *value, abi::FunctionAttribute attribute,
                               abi::Function function) {
  ENTER(cuFuncGetAttribute);
  const std::map<int, int> values = {{abi::kMaxThreadsPerBlock, function->maxThreads},
                                     {abi::kSharedSizeBytes, function->sharedBytes},
                                     {abi::kLocalSizeBytes, 0},
                                     {abi::kNumRegs, function->registers}};
  *value = values.at(attribute);
  return 0;
}

abi::Result cuFuncSetAttribute(abi::Function function, abi::FunctionAttribute attribute,
                               int value) {
  ENTER(cuFuncSetAttribute);
  if (attribute == abi::kMaxDynamicSharedSizeBytes)
    function->dynamicSharedBytes = value;
  else if (attribute == abi::kNonPortableClusterSizeAllowed)
    function->nonPortable = value != 0;
  else
    return kInvalidValue;
  return 0;
}

abi::Result cuFuncLoad(abi::Function) {
  ENTER_UNSAFE(cuFuncLoad);
  return 0;
}

abi::Result cuFuncGetParamInfo(abi::Function function, size_t index, size_t *offset,
                               size_t *bytes) {
  ENTER(cuFuncGetParamInfo);
  if (index >= function->parameters.size())
    return kInvalidValue;
  *offset = 0;
  *bytes = function->parameters[index];
  return 0;
}

abi::Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, abi::Function, int threads,
                                                        size_t sharedBytes) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = std::min<int>(2048 / threads, static_cast<int>((228 << 10) / (sharedBytes + 1024)));
  return 0;
}

/// As on an H100: the CTAs of a cluster lie in one of 8 parts, not all of which are complete.
abi::Result cuOccupancyMaxActiveClusters(int *clusters, abi::Function,
                                         const abi::LaunchConfig *config) {
  ENTER(cuOccupancyMaxActiveClusters);
  if (config->numAttrs != 1 || config->attrs[0].id != abi::kClusterDimension ||
      config->gridDimX % config->attrs[0].value.clusterDim.x != 0)
    return kInvalidValue;
  int size = static_cast<int>(config->attrs[0].value.clusterDim.x);
  *clusters = 6 * (16 / size) + 2 * (18 / size);
  return 0;
}

Node nodeOf(const abi::LaunchConfig &config, abi::Function function, void **parameters) {
  Node node = {function, config, 0, 0, {}};
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
  if (launches.size() == 10000)
    launches.pop_front();
  launches.push_back(launch);
}

/// What a kernel does, if it is one that runs.
void execute(const Node &node) {
  if (node.function->name.rfind("head_", 0) != 0)
    return;
  std::vector<const void *> parameters;
  for (const std::vector<unsigned char> &parameter : node.parameters)
    parameters.push_back(parameter.data());
  runHead(parameters.data(), node.config.gridDimX * node.config.blockDimX);
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
    execute(node);
  return 0;
}

abi::Result cuTensorMapEncodeTiled(abi::TensorMap *map, int element, uint32_t rank, void *address,
                                   const uint64_t *dims, const uint64_t *pitches,
                                   const uint32_t *box, const uint32_t *steps, int interleave,
                                   abi::TensorMapSwizzle swizzle, abi::TensorMapPromotion promotion,
                                   int fill) {
  ENTER(cuTensorMapEncodeTiled);
  auto at = reinterpret_cast<uint64_t>(address);
  bool bad = reinterpret_cast<uint64_t>(map) % 64 != 0 || rank < 1 || rank > 5 || at == 0 ||
             at % 16 != 0 || interleave != 0 || fill != 0;
  FakeTensorMap made = {};
  made.address = at;
  made.element = static_cast<uint8_t>(element);
  made.rank = static_cast<uint8_t>(rank);
  made.swizzle = static_cast<uint8_t>(swizzle);
  made.promotion = static_cast<uint8_t>(promotion);
  for (uint32_t i = 0; i < rank && !bad; ++i) {
    bad |=
        dims[i] == 0 || dims[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1;
    made.dims[i] = dims[i];
    made.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) {
      bad |= pitches[i - 1] % 16 != 0 || pitches[i - 1] >= uint64_t{1} << 40;
      made.pitches[i - 1] = pitches[i - 1];
    }
  }
  if (bad)
    return kInvalidValue;
  memcpy(map, &made, sizeof(made));
  return 0;
}

abi::Result cuMemAlloc(abi::Address *address, size_t bytes) {
  ENTER_UNSAFE(cuMemAlloc);
  if (!current())
    return kInvalidContext;
  // Only what the library zeroes is ever looked at.
  size_t backed = std::min<size_t>(bytes, 128 << 10);
  void *made = std::aligned_alloc(512, (backed + 511) / 512 * 512);
  memset(made, 0xAA, backed);
  *address = reinterpret_cast<abi::Address>(made);
  memory[*address] = bytes;
  return 0;
}

abi::Result cuMemFree(abi::Address address) {
  ENTER_UNSAFE(cuMemFree);
  if (!memory.erase(address)) {
    violate("memory was freed twice");
    return kInvalidValue;
  }
  std::free(reinterpret_cast<void *>(address));
  return 0;
}

abi::Result cuMemsetD8Async(abi::Address address, unsigned char value, size_t bytes,
                            abi::Stream handle) {
  ENTER(cuMemsetD8Async);
  abi::StreamHandle *stream = resolve(handle);
  if (!stream || stream->context != current())
    return abi::kInvalidHandle;
  if (stream->graph)
    violate("a memset was captured");
  memset(reinterpret_cast<void *>(address), value, bytes);
  return 0;
}

abi::Result cuMemcpyHtoDAsync(abi::Address to, const void *from, size_t bytes, abi::Stream handle) {
  ENTER(cuMemcpyHtoDAsync);
  abi::StreamHandle *stream = resolve(handle);
  if (!stream || stream->context != current())
    return abi::kInvalidHandle;
  if (stream->graph)
    violate("a copy was captured");
  auto found = memory.find(to);
  if (found == memory.end() || bytes > found->second)
    violate("a copy reaches beyond its buffer");
  else
    memcpy(reinterpret_cast<void *>(to), from, bytes);
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
  return 0;
}

abi::Result cuStreamWaitEvent(abi::Stream handle, abi::Event event, unsigned flags) {
  ENTER(cuStreamWaitEvent);
  abi::StreamHandle *stream = resolve(handle);
  if (!events.count(event) || flags || !stream)
    return abi::kInvalidHandle;
  if (!event->stream)
    violate("a stream waits for an event that was never recorded");
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

/// Nodes form a chain: each one waits for the one that was added before it.
abi::Result cuGraphAddDependencies(abi::Graph graph, const abi::GraphNode *from,
                                   const abi::GraphNode *to, const abi::GraphEdgeData *edges,
                                   size_t count) {
  ENTER(cuGraphAddDependencies);
  for (size_t i = 0; i < count; ++i) {
    if (from[i]->graph != graph || to[i]->graph != graph || edges[i].to_port ||
        (edges[i].type == abi::kDependencyProgrammatic) !=
            (edges[i].from_port == abi::kPortProgrammatic))
      return kInvalidValue;
    if (to[i]->number != from[i]->number + 1)
      violate("an edge leaves the chain of a graph");
    ++graph->edges;
    graph->nodes[to[i]->number].programmatic = edges[i].type == abi::kDependencyProgrammatic;
  }
  return 0;
}

abi::Result cuGraphInstantiateWithFlags(abi::GraphExec *executable, abi::Graph graph,
                                        unsigned long long flags) {
  ENTER_UNSAFE(cuGraphInstantiateWithFlags);
  if (flags || !graphs.count(graph))
    return kInvalidValue;
  if (graph->edges + 1 != graph->nodes.size())
    violate("a graph is no chain");
  *executable = new abi::GraphExecHandle{graph, graph->held, graph->nodes};
  executables.insert(*executable);
  return 0;
}

abi::Result cuGraphUpload(abi::GraphExec executable, abi::Stream stream) {
  ENTER(cuGraphUpload);
  return executables.count(executable) && resolve(stream) ? 0 : kInvalidValue;
}

void replay(const std::vector<Node> &nodes, abi::Stream stream, abi::GraphExecHandle *executable) {
  for (const Node &node : nodes) {
    record(node, stream, nullptr, executable);
    execute(node);
  }
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
  replay(executable->nodes, handle, executable);
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

struct Entry {
  const char *name;
  int version;
  void *function;
};

#define FUNCTION(name, version) {#name, version, reinterpret_cast<void *>(&name)}
const Entry table[] = {
    FUNCTION(cuInit, 2000),
    FUNCTION(cuGetErrorName, 6000),
    FUNCTION(cuGetErrorString, 6000),
    FUNCTION(cuDriverGetVersion, 2020),
    FUNCTION(cuDeviceGetCount, 2000),
    FUNCTION(cuDeviceGet, 2000),
    FUNCTION(cuDeviceGetName, 2000),
    FUNCTION(cuDeviceGetAttribute, 2000),
    FUNCTION(cuDeviceTotalMem, 3020),
    FUNCTION(cuDevicePrimaryCtxRetain, 7000),
    FUNCTION(cuCtxGetCurrent, 4000),
    FUNCTION(cuCtxPushCurrent, 4000),
    FUNCTION(cuCtxPopCurrent, 4000),
    FUNCTION(cuModuleLoadDataEx, 2010),
    FUNCTION(cuModuleUnload, 2000),
    FUNCTION(cuModuleGetFunction, 2000),
    FUNCTION(cuFuncGetAttribute, 2020),
    FUNCTION(cuFuncSetAttribute, 9000),
    FUNCTION(cuFuncLoad, 12040),
    FUNCTION(cuFuncGetParamInfo, 12040),
    FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050),
    FUNCTION(cuOccupancyMaxActiveClusters, 11070),
    FUNCTION(cuLaunchKernelEx, 11060),
    FUNCTION(cuTensorMapEncodeTiled, 12000),
    FUNCTION(cuMemAlloc, 3020),
    FUNCTION(cuMemFree, 3020),
    FUNCTION(cuMemsetD8Async, 3020),
    FUNCTION(cuMemcpyHtoDAsync, 3020),
    FUNCTION(cuStreamCreate, 2000),
    FUNCTION(cuStreamSynchronize, 2000),
    FUNCTION(cuStreamWaitEvent, 3020),
    FUNCTION(cuEventCreate, 2000),
    FUNCTION(cuEventRecord, 2000),
    FUNCTION(cuEventDestroy, 4000),
    FUNCTION(cuStreamGetId, 12000),
    FUNCTION(cuStreamGetCaptureInfo, 11030),
    FUNCTION(cuThreadExchangeStreamCaptureMode, 10010),
    FUNCTION(cuUserObjectCreate, 11030),
    FUNCTION(cuUserObjectRelease, 11030),
    FUNCTION(cuGraphRetainUserObject, 11030),
    FUNCTION(cuGraphCreate, 10000),
    FUNCTION(cuGraphAddKernelNode, 12000),
    FUNCTION(cuGraphKernelNodeSetAttribute, 11000),
    FUNCTION(cuGraphAddDependencies, 12030),
    FUNCTION(cuGraphInstantiateWithFlags, 11040),
    FUNCTION(cuGraphUpload, 11010),
    FUNCTION(cuGraphLaunch, 10000),
    FUNCTION(cuGraphExecKernelNodeSetParams, 12000),
    FUNCTION(cuGraphExecDestroy, 10000),
    FUNCTION(cuGraphDestroy, 10000),
};

} // namespace

extern "C" {

/// Knows exactly one variant of each function, the one with the parameters above.
abi::Result cuGetProcAddress_v2(const char *symbol, void **function, int wanted, uint64_t flags,
                                int *) {
  *function = nullptr;
  if (wanted > version)
    return kInvalidValue;
  if (flags != abi::kGetProcAddressLegacyStream)
    violate("functions of the per-thread default stream were asked for");
  for (const Entry &entry : table)
    if (strcmp(entry.name, symbol) == 0 && entry.version == wanted)
      *function = entry.function;
  return 0;
}

void fakeFail(const char *function, int result, int skipped) {
  Locked locked(lock);
  failures[function] = {result, skipped};
}

void fakeHoldLaunches(int hold) { holdsLaunches = hold != 0; }

int fakeHeldLaunches(void) { return heldLaunches; }

int fakeCalls(const char *function) {
  Locked locked(lock);
  return calls[function];
}

void fakeDriverVersion(int wanted) { version = wanted; }

int fakeLaunches(void) {
  Locked locked(lock);
  return static_cast<int>(launches.size());
}

const FakeLaunch *fakeLaunchAt(int index) {
  Locked locked(lock);
  return &launches.at(static_cast<size_t>(index));
}

void fakeForgetLaunches(void) {
  Locked locked(lock);
  launches.clear();
}

void *fakeStreamCreate(int device) {
  Locked locked(lock);
  return *streams.insert(new abi::StreamHandle{&contexts[device], nextId++}).first;
}

void fakeStreamDestroy(void *stream) {
  Locked locked(lock);
  auto *handle = static_cast<abi::StreamHandle *>(stream);
  streams.erase(handle);
  delete handle;
}

void fakeBeginCapture(void *handle, int mode) {
  Locked locked(lock);
  auto *stream = static_cast<abi::StreamHandle *>(handle);
  stream->graph = new abi::GraphHandle;
  stream->capture = nextId++;
  stream->mode = static_cast<abi::CaptureMode>(mode);
  stream->capturer = std::this_thread::get_id();
  stream->spoiled = false;
}

void fakeJoinCapture(void *handle, void *origin) {
  Locked locked(lock);
  auto *stream = static_cast<abi::StreamHandle *>(handle);
  auto *other = static_cast<abi::StreamHandle *>(origin);
  stream->graph = other->graph;
  stream->capture = other->capture;
  stream->mode = other->mode;
  stream->capturer = other->capturer;
}

void *fakeEndCapture(void *handle) {
  abi::GraphHandle *graph;
  bool spoiled;
  {
    Locked locked(lock);
    auto *stream = static_cast<abi::StreamHandle *>(handle);
    graph = stream->graph;
    spoiled = false;
    for (abi::StreamHandle *captured : streams) {
      if (captured->graph != graph)
        continue;
      spoiled |= captured->spoiled;
      captured->graph = nullptr;
      captured->capture = 0;
      captured->spoiled = false;
    }
  }
  if (!spoiled)
    return graph;
  fakeGraphDestroy(graph);
  return nullptr;
}

void fakeGraphDestroy(void *handle) { delete static_cast<abi::GraphHandle *>(handle); }

void fakeGraphReplay(void *handle) {
  Locked locked(lock);
  replay(static_cast<abi::GraphHandle *>(handle)->nodes, nullptr, nullptr);
}

void fakeSetContext(int device) {
  stack.clear();
  if (device >= 0)
    stack.push_back(&contexts[device]);
}

int fakeContext(void) { return current() ? current()->device : -1; }

int fakeModules(void) {
  Locked locked(lock);
  return static_cast<int>(modules.size());
}

int fakeGraphs(void) {
  Locked locked(lock);
  return static_cast<int>(graphs.size());
}

int fakeEvents(void) {
  Locked locked(lock);
  return static_cast<int>(events.size());
}

int fakeExecutables(void) {
  Locked locked(lock);
  return static_cast<int>(executables.size());
}

int64_t fakeMemory(void) {
  Locked locked(lock);
  int64_t bytes = 0;
  for (const auto &[address, size] : memory)
    bytes += static_cast<int64_t>(size);
  return bytes;
}

const char *fakeViolations(void) {
  Locked locked(lock);
  return violations.c_str();
}

} // extern "C"
