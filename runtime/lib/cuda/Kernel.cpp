// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Kernel.h"

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

using namespace shapejit::rt::cuda;

namespace {

// Clusters of up to this size run on every device that has clusters.
constexpr int32_t kPortableCluster = 8;
constexpr int32_t kMaxCluster = 16;
// A function may have so much shared memory without asking.
constexpr int32_t kFreeSharedBytes = 48 << 10;
// More than any device runs at once.
constexpr int64_t kMostLeastCtas = 1 << 16;
// Tensor maps lie at multiples of this, in parameters and in device memory.
constexpr int32_t kTensorMapAlignment = 64;

int32_t alignmentOf(const Parameter &parameter) {
  return parameter.isMap() ? kTensorMapAlignment : parameter.bytes;
}

bool isOutside(int64_t value, int64_t least, int64_t most) { return value < least || value > most; }

} // namespace

Status ShapejitRtCudaKernel::create(ShapejitRtCudaModule &module,
                                    const ShapejitRtCudaInterface &interface,
                                    ShapejitRtCudaKernel *&kernel) {
  ShapejitRtCudaModule::unloadRetired();
  void *memory = std::malloc(sizeof(ShapejitRtCudaKernel));
  if (!memory)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a kernel's record");
  ShapejitRtCudaKernel *made = new (memory) ShapejitRtCudaKernel;
  module.retain();
  made->module = &module;
  Status status = made->describe(interface);
  if (!status)
    status = made->load();
  if (!status && interface.ctasPerSm != 0)
    status = made->countResident(interface.ctasPerSm);
  if (status) {
    if (status != ShapejitRtCudaBadInterface)
      addToError(" (kernel %s)", interface.entry);
    made->destroy();
    return status;
  }
  kernel = made;
  return ShapejitRtCudaOk;
}

void ShapejitRtCudaKernel::destroy() {
  module->release();
  std::free(names);
  std::free(parameters);
  std::free(this);
  ShapejitRtCudaModule::unloadRetired();
}

// From the interface.

Status ShapejitRtCudaKernel::copyNames(const ShapejitRtCudaInterface &interface) {
  size_t bytes = strlen(interface.entry) + 1;
  for (int32_t i = 0; i < interface.valueCount; ++i)
    bytes += strlen(interface.values[i]) + 1;
  names = static_cast<char *>(std::malloc(bytes));
  if (!names)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a kernel's names");
  char *next = names;
  auto copy = [&next](const char *name) {
    const char *copied = strcpy(next, name);
    next += strlen(name) + 1;
    return copied;
  };
  entry = copy(interface.entry);
  for (int32_t i = 0; i < interface.valueCount; ++i)
    values[i] = copy(interface.values[i]);
  valueCount = interface.valueCount;
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::checkValue(int32_t value, const char *what) const {
  if (value >= 0 && value < valueCount)
    return ShapejitRtCudaOk;
  return fail(ShapejitRtCudaBadInterface, "kernel %s: %s refers to value %d of %d", entry, what,
              value, valueCount);
}

Status ShapejitRtCudaKernel::describe(const ShapejitRtCudaInterface &from) {
  const struct {
    const char *what;
    int64_t value, least, most;
  } rules[] = {
      {"the number of values", from.valueCount, 0, kMaxValues},
      {"the number of parameters", from.parameterCount, 0, kMaxParameters},
      {"the number of a grid's tiles", from.tileCount, 0, kMaxTiles},
      {"the number of threads", from.threads, 1, 1024},
      {"the shared memory in bytes", from.sharedBytes, 0, module->device->sharedBytesPerBlock},
      {"the size of a cluster", from.cluster, 1, kMaxCluster},
      {"CTAs for a multiprocessor", from.ctasPerSm, 0, 64},
      {"the size of the entry in bytes", from.blockBytes, 0, INT32_MAX},
  };
  for (const auto &rule : rules)
    if (isOutside(rule.value, rule.least, rule.most))
      return fail(ShapejitRtCudaBadInterface,
                  "kernel %s: %s is %" PRId64 "; it must be within %" PRId64 "..%" PRId64,
                  from.entry, rule.what, rule.value, rule.least, rule.most);
  SHAPEJIT_TRY(copyNames(from));
  threads = from.threads;
  sharedBytes = from.sharedBytes;
  cluster = from.cluster;
  block = from.block != 0;
  blockBytes = static_cast<int32_t>(from.blockBytes);
  programmatic = from.programmatic != 0;
  if (block && from.ctasPerSm == 0)
    return fail(ShapejitRtCudaBadInterface,
                "kernel %s: in block form the grid must be persistent, since it is launched before "
                "its sizes are known",
                entry);
  for (tileCount = 0; tileCount < from.tileCount; ++tileCount) {
    tiles[tileCount] = from.tiles[tileCount];
    SHAPEJIT_TRY(checkValue(tiles[tileCount].value, "the grid"));
    if (tiles[tileCount].tile < 1)
      return fail(ShapejitRtCudaBadInterface, "kernel %s: a tile of the grid has the length %d",
                  entry, tiles[tileCount].tile);
  }
  const auto most = static_cast<size_t>(std::max(from.parameterCount, 1));
  parameters = static_cast<Parameter *>(std::malloc(most * sizeof(Parameter)));
  if (!parameters)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a kernel's parameters");
  for (int32_t i = 0; i < from.parameterCount; ++i)
    SHAPEJIT_TRY(addParameter(from.parameters[i], from));
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::addParameter(const ShapejitRtCudaParameter &given,
                                          const ShapejitRtCudaInterface &from) {
  char what[512];
  snprintf(what, sizeof(what), "kernel %s, parameter %d", entry, parameterCount);
  Parameter &parameter = *new (&parameters[parameterCount]) Parameter;
  parameter.kind = static_cast<ShapejitRtCudaParameterKind>(given.kind);
  parameter.operand = given.operand;
  parameter.value = given.value;
  parameter.bytes = 8;
  bool hasOperand = given.kind == ShapejitRtCudaTensorMap ||
                    given.kind == ShapejitRtCudaIm2colMap || given.kind == ShapejitRtCudaPointer;
  if (hasOperand && given.operand < 0)
    return fail(ShapejitRtCudaBadInterface, "%s: there is no operand %d", what, given.operand);
  switch (given.kind) {
  case ShapejitRtCudaTensorMap:
  case ShapejitRtCudaIm2colMap:
    parameter.bytes = sizeof(abi::TensorMap);
    SHAPEJIT_TRY(parameter.map.make(given, what));
    for (uint32_t i = 0; i < parameter.map.rank; ++i) {
      SHAPEJIT_TRY(checkValue(parameter.map.dims[i], "a tensor map"));
      if (i > 0)
        SHAPEJIT_TRY(checkValue(parameter.map.strides[i - 1], "a tensor map"));
    }
    break;
  case ShapejitRtCudaPointer:
    break;
  case ShapejitRtCudaSize:
    parameter.bytes = given.bytes;
    if (given.bytes != 4 && given.bytes != 8)
      return fail(ShapejitRtCudaBadInterface, "%s: a size has 4 or 8 bytes, not %d", what,
                  given.bytes);
    SHAPEJIT_TRY(checkValue(given.value, "a size"));
    break;
  case ShapejitRtCudaWorkspace:
    SHAPEJIT_TRY(addWorkspace(given, what));
    break;
  default:
    return fail(ShapejitRtCudaBadInterface, "%s: %d is no kind of parameter", what, given.kind);
  }
  SHAPEJIT_TRY(place(parameter, given.offset, from.blockBytes, what));
  ++parameterCount;
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::addWorkspace(const ShapejitRtCudaParameter &given, const char *what) {
  if (takesWorkspace)
    return fail(ShapejitRtCudaBadInterface, "%s: a kernel takes one workspace", what);
  takesWorkspace = true;
  if (isOutside(given.bytesPerCta, 0, INT32_MAX))
    return fail(ShapejitRtCudaBadInterface,
                "%s: a workspace of %" PRId64 " bytes for a CTA; it must be within 0..%d", what,
                given.bytesPerCta, INT32_MAX);
  if (isOutside(given.leastCtas, 0, kMostLeastCtas))
    return fail(ShapejitRtCudaBadInterface,
                "%s: a workspace for %" PRId64 " CTAs at the least; it must be within 0..%" PRId64,
                what, given.leastCtas, kMostLeastCtas);
  if (isOutside(given.zeroed, 0, WorkspaceTable::kZeros) || given.zeroed % 16 != 0)
    return fail(ShapejitRtCudaBadInterface,
                "%s: %" PRId64 " zero bytes of a workspace; that must be a multiple of 16 within "
                "0..%" PRId64,
                what, given.zeroed, WorkspaceTable::kZeros);
  workspaceBytesPerCta = given.bytesPerCta;
  workspaceLeastCtas = given.leastCtas;
  workspaceZeroed = given.zeroed;
  return ShapejitRtCudaOk;
}

/// Gives a parameter its place: in block form the one that the interface says.
Status ShapejitRtCudaKernel::place(Parameter &parameter, int64_t offset, int64_t blockBytes,
                                   const char *what) {
  int32_t alignment = alignmentOf(parameter);
  if (!block) {
    parameter.offset = (parameterBytes + alignment - 1) / alignment * alignment;
    parameterBytes = parameter.offset + parameter.bytes;
    if (parameterBytes > kMaxParameterBytes)
      return fail(ShapejitRtCudaBadInterface,
                  "%s: the parameters take more than %d bytes; use the block form", what,
                  kMaxParameterBytes);
    return ShapejitRtCudaOk;
  }
  if (isOutside(offset, 0, blockBytes - parameter.bytes) || offset % alignment != 0)
    return fail(ShapejitRtCudaBadInterface,
                "%s: it cannot lie at offset %" PRId64 " of an entry of %" PRId64
                " bytes; it takes %d bytes at a multiple of %d",
                what, offset, blockBytes, parameter.bytes, alignment);
  parameter.offset = static_cast<int32_t>(offset);
  for (int32_t i = 0; i < parameterCount; ++i) {
    const Parameter &other = parameters[i];
    if (offset < other.offset + other.bytes && other.offset < offset + parameter.bytes)
      return fail(ShapejitRtCudaBadInterface, "%s: it overlaps parameter %d in the entry", what, i);
  }
  return ShapejitRtCudaOk;
}

// From the machine code.

Status ShapejitRtCudaKernel::load() {
  UseDevice use(*module->device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  abi::Result result = driver.cuModuleGetFunction(&function, module->handle, entry);
  if (result == abi::kNotFound)
    return fail(ShapejitRtCudaBadInterface, "kernel %s: its machine code has no such function",
                entry);
  if (result != abi::kSuccess)
    return failDriver("cuModuleGetFunction", result);
  // The driver may put loading off until the first launch, which might be captured then.
  if (driver.cuFuncLoad)
    SHAPEJIT_CUDA_TRY(cuFuncLoad, function);
  SHAPEJIT_TRY(checkParameters());
  return setLimits();
}

/// Compares the parameters with those of the function, where the driver tells.
Status ShapejitRtCudaKernel::checkParameters() const {
  if (!driver.cuFuncGetParamInfo)
    return ShapejitRtCudaOk;
  int32_t count = block ? 1 : parameterCount;
  for (int32_t i = 0; i < count; ++i) {
    size_t offset = 0, bytes = 0, wanted = block ? 8 : parameters[i].bytes;
    if (driver.cuFuncGetParamInfo(function, i, &offset, &bytes))
      return fail(ShapejitRtCudaBadInterface,
                  "kernel %s: its function has %d parameters, its interface %d", entry, i, count);
    if (bytes != wanted)
      return fail(
          ShapejitRtCudaBadInterface,
          "kernel %s: parameter %d takes %zu bytes in its function, and %zu by its interface",
          entry, i, bytes, wanted);
  }
  size_t offset, bytes;
  if (driver.cuFuncGetParamInfo(function, count, &offset, &bytes) == abi::kSuccess)
    return fail(ShapejitRtCudaBadInterface,
                "kernel %s: its function has more than the %d parameters of its interface", entry,
                count);
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::setLimits() {
  int maxThreads = 0;
  const struct {
    abi::FunctionAttribute attribute;
    int *value;
  } attributes[] = {{abi::kMaxThreadsPerBlock, &maxThreads},
                    {abi::kNumRegs, &info.registers},
                    {abi::kLocalSizeBytes, &info.localBytes},
                    {abi::kSharedSizeBytes, &info.sharedBytes}};
  for (auto [attribute, value] : attributes)
    SHAPEJIT_CUDA_TRY(cuFuncGetAttribute, value, attribute, function);
  if (threads > maxThreads)
    return fail(ShapejitRtCudaBadInterface,
                "kernel %s: %d threads; its function can have %d, with %d registers each", entry,
                threads, maxThreads, info.registers);
  int32_t most = module->device->sharedBytesPerBlock;
  if (sharedBytes + info.sharedBytes > most)
    return fail(ShapejitRtCudaBadInterface,
                "kernel %s: %d bytes of dynamic and %d of static shared memory are above the %d "
                "that a CTA can have",
                entry, sharedBytes, info.sharedBytes, most);
  if (sharedBytes + info.sharedBytes > kFreeSharedBytes)
    SHAPEJIT_CUDA_TRY(cuFuncSetAttribute, function, abi::kMaxDynamicSharedSizeBytes, sharedBytes);
  // A multiprocessor divides its memory between shared memory and cache anew only when it is idle,
  // so kernels that are to overlap agree on how.
  if (block || programmatic)
    SHAPEJIT_CUDA_TRY(cuFuncSetAttribute, function, abi::kPreferredSharedMemoryCarveout,
                      abi::kMostSharedMemory);
  if (cluster > kPortableCluster)
    SHAPEJIT_CUDA_TRY(cuFuncSetAttribute, function, abi::kNonPortableClusterSizeAllowed, 1);
  return ShapejitRtCudaOk;
}

/// Sets the clusters of a persistent grid: those that the schedule wants, as far as the device runs
/// them at the same time. Clusters do not fill it: their CTAs must lie in one part of it.
Status ShapejitRtCudaKernel::countResident(int32_t ctasPerSm) {
  UseDevice use(*module->device);
  SHAPEJIT_TRY(use.status);
  int32_t multiprocessors = module->device->multiprocessors;
  int resident = 0;
  if (cluster == 1) {
    SHAPEJIT_CUDA_TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, &resident, function, threads,
                      static_cast<size_t>(sharedBytes));
    resident *= multiprocessors;
  } else {
    abi::LaunchAttribute attribute = {};
    attribute.id = abi::kClusterDimension;
    attribute.value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    abi::LaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>(multiprocessors * ctasPerSm / cluster * cluster);
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.gridDimX = std::max(config.gridDimX, static_cast<unsigned>(cluster));
    config.blockDimX = static_cast<unsigned>(threads);
    config.sharedMemBytes = static_cast<unsigned>(sharedBytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    SHAPEJIT_CUDA_TRY(cuOccupancyMaxActiveClusters, &resident, function, &config);
  }
  residentClusters = std::min(resident, ctasPerSm * multiprocessors / cluster);
  if (residentClusters == 0)
    return fail(ShapejitRtCudaBadInterface,
                "kernel %s: the device cannot run a cluster of %d CTAs of %d threads and %d bytes "
                "of shared memory",
                entry, cluster, threads, sharedBytes);
  info.residentCtas = residentClusters * cluster;
  if (takesWorkspace) {
    WorkspaceNeed need = workspaceNeed(static_cast<uint32_t>(info.residentCtas));
    info.workspaceBytes = need.zeroed + need.scratch;
  }
  return ShapejitRtCudaOk;
}

// Calls.

Status ShapejitRtCudaKernel::grid(const int64_t *given, uint32_t &ctas) const {
  int64_t units = 1;
  bool overflows = false;
  for (int32_t i = 0; i < tileCount; ++i) {
    int64_t value = given[tiles[i].value], tile = tiles[i].tile;
    if (value < 0)
      return fail(ShapejitRtCudaBadCall, "%s = %" PRId64 " is negative", values[tiles[i].value],
                  value);
    int64_t count = value / tile + (value % tile != 0);
    overflows |= __builtin_mul_overflow(units, count, &units);
    // Whatever the other factors are.
    if (count == 0) {
      ctas = 0;
      return ShapejitRtCudaOk;
    }
  }
  if (residentClusters != 0)
    units = overflows ? residentClusters : std::min<int64_t>(units, residentClusters);
  else if (overflows || units > INT32_MAX / cluster)
    return fail(ShapejitRtCudaBadCall,
                "the grid would have more than %d clusters of %d CTAs, the most there can be",
                INT32_MAX / cluster, cluster);
  ctas = static_cast<uint32_t>(units * cluster);
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::writeSize(const Parameter &parameter, const int64_t *given,
                                       unsigned char *to) const {
  int64_t value = given[parameter.value];
  if (parameter.bytes == 8) {
    memcpy(to, &value, sizeof(value));
    return ShapejitRtCudaOk;
  }
  if (value != static_cast<int32_t>(value))
    return fail(ShapejitRtCudaBadCall,
                "%s = %" PRId64 " does not fit its 4 bytes: this kernel takes at most %d there",
                values[parameter.value], value, INT32_MAX);
  int32_t narrow = static_cast<int32_t>(value);
  memcpy(to, &narrow, sizeof(narrow));
  return ShapejitRtCudaOk;
}

Status ShapejitRtCudaKernel::write(void *const *operands, const int64_t *given, void *workspace,
                                   unsigned char *to) const {
  for (int32_t i = 0; i < parameterCount; ++i) {
    const Parameter &parameter = parameters[i];
    unsigned char *at = to + parameter.offset;
    switch (parameter.kind) {
    case ShapejitRtCudaTensorMap:
    case ShapejitRtCudaIm2colMap: {
      auto &map = *reinterpret_cast<abi::TensorMap *>(at);
      void *address = operands[parameter.operand];
      if (Status status = parameter.map.encode(*module->device, address, given, values, map)) {
        addToError(" (operand %d)", parameter.operand);
        return status;
      }
      break;
    }
    case ShapejitRtCudaPointer:
      memcpy(at, &operands[parameter.operand], sizeof(void *));
      break;
    case ShapejitRtCudaSize:
      SHAPEJIT_TRY(writeSize(parameter, given, at));
      break;
    case ShapejitRtCudaWorkspace:
      memcpy(at, &workspace, sizeof(void *));
      break;
    }
  }
  return ShapejitRtCudaOk;
}

WorkspaceNeed ShapejitRtCudaKernel::workspaceNeed(uint32_t ctas) const {
  return {workspaceZeroed, workspaceBytesPerCta * std::max<int64_t>(ctas, workspaceLeastCtas)};
}

Status ShapejitRtCudaKernel::explain(Status status, const int64_t *given, uint32_t ctas) const {
  if (!status)
    return status;
  addToError(" (kernel %s", entry);
  if (ctas != 0)
    addToError(", %u CTAs in clusters of %d, %d threads and %d bytes of shared memory each", ctas,
               cluster, threads, sharedBytes);
  for (int32_t i = 0; given && i < valueCount; ++i)
    addToError("%s %s = %" PRId64, i ? "," : ";", values[i], given[i]);
  addToError(")");
  return status;
}
