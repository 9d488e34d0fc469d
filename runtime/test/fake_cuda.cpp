// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The driver itself: devices, modules, functions, memory, and what tests ask and tell it. See
// FakeCuda.h. Built with its other files as a shared library that stands for libcuda.

#include "FakeDriver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

Held::~Held() {
  std::thread([this] {
    fake::inDestructor = true;
    for (abi::UserObjectHandle *object : objects) {
      object->destroy(object->object);
      delete object;
    }
  }).join();
}

// The state.

namespace fake {

std::recursive_mutex lock;
abi::ContextHandle contexts[kDevices] = {{0}, {1}};
abi::StreamHandle legacyStreams[kDevices] = {{&contexts[0], 1}, {&contexts[1], 2}};
thread_local std::vector<abi::ContextHandle *> stack;
thread_local abi::CaptureMode threadMode = abi::kCaptureGlobal;
thread_local bool inDestructor = false;

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

// Functions of the driver.

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
  else if (attribute == abi::kPreferredSharedMemoryCarveout)
    function->carveout = value;
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

abi::Result cuTensorMapEncodeIm2col(abi::TensorMap *map, int element, uint32_t rank, void *address,
                                    const uint64_t *dims, const uint64_t *pitches, const int *lower,
                                    const int *upper, uint32_t channels, uint32_t pixels,
                                    const uint32_t *steps, int interleave,
                                    abi::TensorMapSwizzle swizzle,
                                    abi::TensorMapPromotion promotion, int fill) {
  ENTER(cuTensorMapEncodeIm2col);
  auto at = reinterpret_cast<uint64_t>(address);
  if (reinterpret_cast<uint64_t>(map) % 8 != 0 || rank < 3 || rank > 5 || at == 0 || at % 16 != 0 ||
      interleave != 0 || fill != 0 || channels == 0 || channels > 256 || pixels == 0 ||
      pixels > 1024)
    return kInvalidValue;
  FakeTensorMap made = {};
  made.address = at;
  made.element = static_cast<uint8_t>(element);
  made.rank = static_cast<uint8_t>(rank);
  made.swizzle = static_cast<uint8_t>(swizzle);
  made.promotion = static_cast<uint8_t>(promotion);
  made.box[0] = static_cast<uint16_t>(channels);
  made.box[1] = static_cast<uint16_t>(pixels);
  bool bad = false;
  for (uint32_t i = 0; i < rank; ++i) {
    bad |= dims[i] == 0 || dims[i] > uint64_t{1} << 32;
    made.dims[i] = dims[i];
    if (i > 0) {
      bad |= pitches[i - 1] % 16 != 0 || pitches[i - 1] >= uint64_t{1} << 40;
      made.pitches[i - 1] = pitches[i - 1];
    }
  }
  // Corners have 16, 8 or 5 bits, and between them there must be a place.
  int most = 1 << ((rank == 3 ? 16 : rank == 4 ? 8 : 5) - 1);
  for (uint32_t i = 0; i + 2 < rank; ++i) {
    bad |= lower[i] < -most || lower[i] >= most || upper[i] < -most || upper[i] >= most;
    bad |= steps[i + 1] < 1 || steps[i + 1] > 8;
    bad |= static_cast<int64_t>(dims[i + 1]) - 1 + upper[i] < lower[i];
    made.lower[i] = static_cast<int16_t>(lower[i]);
    made.upper[i] = static_cast<int16_t>(upper[i]);
    made.steps[i] = static_cast<uint8_t>(steps[i + 1]);
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
  auto found = memory.find(address);
  if (found == memory.end()) {
    violate("memory was freed twice");
    return kInvalidValue;
  }
  forgetUse(address, found->second);
  memory.erase(found);
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

} // namespace fake

using namespace fake;

namespace {

struct Entry {
  const char *name;
  int version;
  void *function;
};

const Entry table[] = {
#define SHAPEJIT_FAKE_ENTRY(name, version, parameters)                                             \
  {#name, version, reinterpret_cast<void *>(&fake::name)},
    SHAPEJIT_CUDA_REQUIRED(SHAPEJIT_FAKE_ENTRY) SHAPEJIT_CUDA_OPTIONAL(SHAPEJIT_FAKE_ENTRY)
#undef SHAPEJIT_FAKE_ENTRY
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
  replay(static_cast<abi::GraphHandle *>(handle)->nodes, nullptr, nullptr, nullptr);
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
