// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Patch.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

using namespace shapejit::rt::cuda;

namespace {

// Entries start at multiples of this: kernels take them to be aligned so.
constexpr int64_t kEntryAlignment = 128;
// A kernel's operands in all, for the arrays on the stack.
constexpr int32_t kMaxOperands = ShapejitRtCudaKernel::kMaxParameters;
// A size that is replaced in a tensor map has 4 bytes.
constexpr int64_t kMostPatched = TensorMapPlan::kMostElements - 1;
constexpr int64_t kMaxBlockBytes = INT64_C(1) << 30;

int64_t roundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

void *allocateBlock(int64_t bytes) {
  return std::aligned_alloc(
      kEntryAlignment, static_cast<size_t>(roundUp(std::max<int64_t>(bytes, 1), kEntryAlignment)));
}

/// What a launch hands to its kernel, from the words of a call.
struct Arguments {
  Arguments(const RegionLaunch &launch, const int64_t *words) {
    for (int32_t i = 0; i < launch.operandCount; ++i)
      operands[i] = reinterpret_cast<void *>(words[launch.operands[i]]);
    for (int32_t i = 0; i < launch.kernel->valueCount; ++i)
      values[i] = words[launch.values[i]];
  }

  void *operands[kMaxOperands];
  int64_t values[ShapejitRtCudaKernel::kMaxValues];
};

} // namespace

// The launches of a region.

Status RegionLaunches::make(const ShapejitRtCudaProgramLaunch *given, int32_t count,
                            int32_t wordCount, const Device &device) {
  if (count < 1)
    return fail(ShapejitRtCudaBadInterface, "a region of a program has %d launches", count);
  for (int32_t i = 0; i < count; ++i)
    SHAPEJIT_TRY(add(given[i], i, wordCount, device));
  // The array of numbers does not move any more.
  const int32_t *next = numbers.data();
  for (RegionLaunch &launch : launches) {
    launch.operands = next;
    launch.values = next + launch.operandCount;
    launch.waits = launch.values + launch.kernel->valueCount;
    next = launch.waits + launch.waitCount;
  }
  if (blockBytes > kMaxBlockBytes)
    return fail(ShapejitRtCudaBadInterface,
                "the launches of a region take %lld bytes of parameters",
                static_cast<long long>(blockBytes));
  return ShapejitRtCudaOk;
}

Status RegionLaunches::add(const ShapejitRtCudaProgramLaunch &given, int32_t number,
                           int32_t wordCount, const Device &device) {
  const ShapejitRtCudaKernel &kernel = *given.kernel;
  auto bad = [&](const char *rule, int32_t found) {
    return fail(ShapejitRtCudaBadInterface, "launch %d, kernel %s: %s, not %d", number,
                kernel.entry, rule, found);
  };
  if (!kernel.block)
    return fail(ShapejitRtCudaBadInterface,
                "launch %d, kernel %s: it takes its parameters by value, and a program's kernels "
                "read them from a block",
                number, kernel.entry);
  if (kernel.module->device != &device)
    return fail(ShapejitRtCudaBadInterface,
                "launch %d, kernel %s: it is on device %d, and its program on device %d", number,
                kernel.entry, kernel.module->device->number, device.number);
  if (given.valueCount != kernel.valueCount)
    return bad("a launch binds every value of its kernel to a word", given.valueCount);
  if (given.ctas < 0 || given.ctas % kernel.cluster != 0)
    return bad("its grid has whole clusters of CTAs", given.ctas);
  if (given.operandCount < 0 || given.operandCount > kMaxOperands)
    return bad("a launch has 0 to 512 operands", given.operandCount);
  for (int32_t i = 0; i < kernel.parameterCount; ++i) {
    const Parameter &parameter = kernel.parameters[i];
    if (parameter.hasOperand() && parameter.operand >= given.operandCount)
      return bad("a launch binds every operand of its kernel to a word", given.operandCount);
  }
  auto addNumbers = [&](const int32_t *words, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      if (words[i] < 0 || words[i] >= wordCount)
        return bad("it must refer to a word that there is", words[i]);
      SHAPEJIT_TRY(numbers.append(words[i]));
    }
    return Status{ShapejitRtCudaOk};
  };
  SHAPEJIT_TRY(addNumbers(given.operands, given.operandCount));
  SHAPEJIT_TRY(addNumbers(given.values, given.valueCount));
  int32_t waitCount = 0;
  SHAPEJIT_TRY(addWaits(given, number, waitCount));
  int32_t ctas =
      given.ctas ? std::min(given.ctas, kernel.info.residentCtas) : kernel.info.residentCtas;
  RegionLaunch launch = {&kernel,
                         nullptr,
                         nullptr,
                         nullptr,
                         given.operandCount,
                         waitCount,
                         static_cast<uint32_t>(ctas),
                         blockBytes};
  blockBytes += roundUp(kernel.blockBytes, kEntryAlignment);
  return launches.append(launch);
}

Status RegionLaunches::addWaits(const ShapejitRtCudaProgramLaunch &given, int32_t number,
                                int32_t &count) {
  if (!given.waits) {
    count = number ? 1 : 0;
    return number ? numbers.append(number - 1) : Status{ShapejitRtCudaOk};
  }
  int32_t last = -1;
  for (int32_t i = 0; i < given.waitCount; ++i) {
    int32_t wait = given.waits[i];
    if (wait <= last || wait >= number)
      return fail(ShapejitRtCudaBadInterface,
                  "launch %d, kernel %s: it waits for launches ahead of it in ascending order, not "
                  "for launch %d",
                  number, given.kernel->entry, wait);
    SHAPEJIT_TRY(numbers.append(wait));
    last = wait;
  }
  count = given.waitCount;
  return ShapejitRtCudaOk;
}

// The table.

/// Goes through the parameters of a region.
class PatchTable::Builder {
public:
  Builder(PatchTable &table, Device &device, const int64_t *words, int32_t callWords)
      : table(table), device(device), words(words), callWords(callWords) {}

  Status add(const RegionLaunch &launch) {
    for (int32_t i = 0; i < launch.kernel->parameterCount; ++i) {
      const Parameter &parameter = launch.kernel->parameters[i];
      int64_t offset = launch.entry + parameter.offset;
      switch (parameter.kind) {
      case ShapejitRtCudaTensorMap:
      case ShapejitRtCudaIm2colMap:
        SHAPEJIT_TRY(addMap(launch, parameter, offset));
        break;
      case ShapejitRtCudaPointer:
        SHAPEJIT_TRY(addWord(PatchRecord::kWord8, launch.operands[parameter.operand], offset));
        break;
      case ShapejitRtCudaSize:
        SHAPEJIT_TRY(addSize(launch, parameter, offset));
        break;
      case ShapejitRtCudaWorkspace:
        SHAPEJIT_TRY(addWorkspace(*launch.kernel, offset));
        break;
      }
    }
    return ShapejitRtCudaOk;
  }

  /// One rule for every word that has any.
  Status finish() {
    auto &rules = table.rules;
    std::sort(rules.begin(), rules.end(),
              [](const Rule &one, const Rule &other) { return one.word < other.word; });
    Array<Rule> merged;
    for (const Rule &rule : rules) {
      if (merged.size() == 0 || merged[merged.size() - 1].word != rule.word) {
        SHAPEJIT_TRY(merged.append(rule));
        continue;
      }
      Rule &last = merged[merged.size() - 1];
      last.least = std::max(last.least, rule.least);
      last.most = std::min(last.most, rule.most);
      last.clear |= rule.clear;
    }
    rules.swap(merged);
    return ShapejitRtCudaOk;
  }

private:
  bool isFixed(int32_t word) const { return word >= callWords; }

  /// Notes a rule, or looks at once whether a fixed word keeps to it.
  Status require(int32_t word, int64_t least, int64_t most, uint64_t clear) {
    if (!isFixed(word))
      return table.rules.append({word, least, most, clear});
    int64_t value = words[word];
    table.unusual |= value < least || value > most || (static_cast<uint64_t>(value) & clear) != 0;
    return ShapejitRtCudaOk;
  }

  Status addWord(PatchRecord::Kind kind, int32_t word, int64_t offset) {
    if (isFixed(word)) {
      // The lower half comes first.
      memcpy(table.block + offset, &words[word], kind == PatchRecord::kWord4 ? 4 : 8);
      return ShapejitRtCudaOk;
    }
    PatchRecord record = {};
    record.offset = static_cast<uint32_t>(offset);
    record.kind = kind;
    record.slots[0] = word;
    return table.list.append(record);
  }

  Status addSize(const RegionLaunch &launch, const Parameter &parameter, int64_t offset) {
    int32_t word = launch.values[parameter.value];
    if (parameter.bytes == 8)
      return addWord(PatchRecord::kWord8, word, offset);
    SHAPEJIT_TRY(require(word, INT32_MIN, INT32_MAX, 0));
    return addWord(PatchRecord::kWord4, word, offset);
  }

  Status addWorkspace(const ShapejitRtCudaKernel &kernel, int64_t offset) {
    WorkspaceNeed need = kernel.workspaceNeed(static_cast<uint32_t>(kernel.info.residentCtas));
    table.need.zeroed = std::max(table.need.zeroed, need.zeroed);
    table.need.scratch = std::max(table.need.scratch, need.scratch);
    return table.places.append({offset, need.zeroed});
  }

  Status addMap(const RegionLaunch &launch, const Parameter &parameter, int64_t offset) {
    const TensorMapPlan &plan = parameter.map;
    int32_t slots[PatchRecord::kSlots];
    int32_t rank = static_cast<int32_t>(plan.rank);
    bool fixed = true;
    auto set = [&](int32_t slot, int32_t word) {
      slots[slot] = word;
      fixed &= isFixed(word);
    };
    set(PatchRecord::kAddress, launch.operands[parameter.operand]);
    for (int32_t i = 0; i < rank; ++i)
      set(PatchRecord::kDims + i, launch.values[plan.dims[i]]);
    for (int32_t i = 0; i + 1 < rank; ++i)
      set(PatchRecord::kStrides + i, launch.values[plan.strides[i]]);
    auto &map = *reinterpret_cast<abi::TensorMap *>(table.block + offset);
    if (fixed) {
      Arguments given(launch, words);
      Status status = plan.encode(device, given.operands[parameter.operand], given.values,
                                  launch.kernel->values, map);
      if (status)
        addToError(" (operand %d)", parameter.operand);
      return launch.kernel->explain(status, given.values, 0);
    }
    if (plan.im2col)
      return addEncodedMap(launch, parameter, offset);
    SHAPEJIT_TRY(requireMap(plan, slots));
    return addMapRecord(plan, slots, offset, map);
  }

  /// A map that calls encode, and the head kernel copies from the words behind those of the call.
  Status addEncodedMap(const RegionLaunch &launch, const Parameter &parameter, int64_t offset) {
    PatchRecord record = {};
    record.offset = static_cast<uint32_t>(offset);
    record.kind = PatchRecord::kEncodedMap;
    record.slots[0] = callWords + PatchTable::kMapWords * table.encoded.size();
    SHAPEJIT_TRY(table.encoded.append({&launch, &parameter}));
    return table.list.append(record);
  }

  /// What the driver's rules say of single words. A map of an empty tensor may have any address,
  /// and a dim of size 1 any stride: then this says no, and a closer look is taken.
  Status requireMap(const TensorMapPlan &plan, const int32_t *slots) {
    uint64_t bytes = static_cast<uint64_t>(plan.elementBytes);
    uint64_t granule = TensorMapPlan::kLeastPitch;
    SHAPEJIT_TRY(require(slots[PatchRecord::kAddress], 1, INT64_MAX, granule - 1));
    for (uint32_t i = 0; i < plan.rank; ++i)
      SHAPEJIT_TRY(require(slots[PatchRecord::kDims + i], 1, kMostPatched, 0));
    for (uint32_t i = 0; i + 1 < plan.rank; ++i)
      SHAPEJIT_TRY(require(slots[PatchRecord::kStrides + i], 0,
                           TensorMapPlan::kPitchBound / plan.elementBytes - 1,
                           granule / bytes - 1));
    return ShapejitRtCudaOk;
  }

  Status addMapRecord(const TensorMapPlan &plan, const int32_t *slots, int64_t offset,
                      abi::TensorMap &map) {
    PatchRecord record = {};
    record.offset = static_cast<uint32_t>(offset);
    record.kind = PatchRecord::kTensorMap;
    record.rank = static_cast<uint8_t>(plan.rank);
    while (1 << record.elementShift < plan.elementBytes)
      ++record.elementShift;
    auto fill = [&](int32_t slot) {
      bool known = isFixed(slots[slot]);
      record.known |= static_cast<uint32_t>(known) << slot;
      record.slots[slot] = known ? words[slots[slot]] : slots[slot];
    };
    fill(PatchRecord::kAddress);
    for (uint32_t i = 0; i < plan.rank; ++i)
      fill(PatchRecord::kDims + static_cast<int32_t>(i));
    uint64_t pitches[4];
    for (uint32_t i = 0; i + 1 < plan.rank; ++i) {
      int32_t word = slots[PatchRecord::kStrides + i];
      fill(PatchRecord::kStrides + static_cast<int32_t>(i));
      record.strides |= static_cast<uint8_t>(!isFixed(word) << i);
      pitches[i] = isFixed(word) && plan.hasPitch(words[word])
                       ? static_cast<uint64_t>(words[word] * plan.elementBytes)
                       : TensorMapPlan::kLeastPitch;
    }
    SHAPEJIT_TRY(plan.encodeOutline(device.nothing, pitches, map));
    return table.list.append(record);
  }

  PatchTable &table;
  Device &device;
  const int64_t *words;
  int32_t callWords;
};

Status PatchTable::make(Device &device, const RegionLaunches &region, const int64_t *words,
                        int32_t callWords) {
  blockBytes = region.blockBytes;
  block = static_cast<unsigned char *>(allocateBlock(blockBytes));
  if (!block)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a block of %lld bytes",
                static_cast<long long>(blockBytes));
  memset(block, 0, static_cast<size_t>(blockBytes));
  Builder builder(*this, device, words, callWords);
  for (const RegionLaunch &launch : region.launches)
    SHAPEJIT_TRY(builder.add(launch));
  SHAPEJIT_TRY(builder.finish());
  // Tensor maps first: they take longer.
  std::partition(list.begin(), list.end(),
                 [](const PatchRecord &record) { return record.kind >= PatchRecord::kTensorMap; });
  int64_t bytes = std::max<int64_t>(list.size(), 1) * static_cast<int64_t>(sizeof(PatchRecord));
  DeviceMemory *memory;
  SHAPEJIT_TRY(DeviceMemory::make(device, bytes, memory));
  onDevice = MemoryRef(memory);
  return list.size() ? memory->write(list.data(), bytes) : ShapejitRtCudaOk;
}

PatchTable::~PatchTable() { std::free(block); }

Status PatchTable::check(const RegionLaunches &region, const int64_t *words) const {
  bool usual = !unusual;
  for (const Rule &rule : rules) {
    int64_t value = words[rule.word];
    usual &= value >= rule.least && value <= rule.most &&
             (static_cast<uint64_t>(value) & rule.clear) == 0;
  }
  return usual ? ShapejitRtCudaOk : checkFully(region, words);
}

Status PatchTable::encode(Device &device, const int64_t *words, int64_t *to) const {
  for (const EncodedMap &each : encoded) {
    Arguments given(*each.launch, words);
    const ShapejitRtCudaKernel &kernel = *each.launch->kernel;
    abi::TensorMap map;
    Status status = each.parameter->map.encode(device, given.operands[each.parameter->operand],
                                               given.values, kernel.values, map);
    if (status) {
      addToError(" (operand %d)", each.parameter->operand);
      return kernel.explain(status, given.values, 0);
    }
    memcpy(to, &map, sizeof(map));
    to += kMapWords;
  }
  return ShapejitRtCudaOk;
}

/// Has every kernel write its parameters, as launches without a graph do.
Status PatchTable::checkFully(const RegionLaunches &region, const int64_t *words) const {
  int64_t most = 1;
  for (const RegionLaunch &launch : region.launches)
    most = std::max<int64_t>(most, launch.kernel->blockBytes);
  auto *entry = static_cast<unsigned char *>(allocateBlock(most));
  if (!entry)
    return fail(ShapejitRtCudaDriverFailed, "no memory for %lld bytes of parameters",
                static_cast<long long>(most));
  Status status = ShapejitRtCudaOk;
  for (const RegionLaunch &launch : region.launches) {
    Arguments given(launch, words);
    status = launch.kernel->write(given.operands, given.values, nullptr, entry);
    status = launch.kernel->explain(status, given.values, 0);
    if (status)
      break;
  }
  std::free(entry);
  return status ? status : checkSizes(words);
}

/// What the driver takes, and `tensormap.replace` does not.
Status PatchTable::checkSizes(const int64_t *words) const {
  for (const PatchRecord &record : list)
    for (int32_t i = 0; record.kind == PatchRecord::kTensorMap && i < record.rank; ++i) {
      int32_t slot = PatchRecord::kDims + i;
      bool isKnown = record.known >> slot & 1;
      int64_t size = isKnown ? record.slots[slot] : words[record.slots[slot]];
      if (size > kMostPatched)
        return fail(ShapejitRtCudaBadCall,
                    "a dim of a tensor map has %lld elements; in a program it has %lld at most, "
                    "unless its tensor is a weight",
                    static_cast<long long>(size), static_cast<long long>(kMostPatched));
    }
  return ShapejitRtCudaOk;
}

Status PatchTable::makeBlock(Device &device, abi::Address workspace, DeviceMemory *&made) const {
  MemoryRef memory;
  {
    DeviceMemory *allocated;
    SHAPEJIT_TRY(DeviceMemory::make(device, std::max<int64_t>(blockBytes, 1), allocated));
    memory = MemoryRef(allocated);
  }
  auto *filled = static_cast<unsigned char *>(allocateBlock(blockBytes));
  if (!filled)
    return fail(ShapejitRtCudaDriverFailed, "no memory for a block of %lld bytes",
                static_cast<long long>(blockBytes));
  memcpy(filled, block, static_cast<size_t>(blockBytes));
  for (const WorkspacePlace &place : places) {
    abi::Address address = workspace - static_cast<abi::Address>(place.zeroed);
    memcpy(filled + place.offset, &address, sizeof(address));
  }
  Status status = memory->write(filled, blockBytes);
  std::free(filled);
  SHAPEJIT_TRY(status);
  memory->retain();
  made = memory.get();
  return ShapejitRtCudaOk;
}
