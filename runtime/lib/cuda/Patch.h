// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// From the kernels of a region to what a call changes in its parameter block.
//
// The block has an entry for every launch. What does not depend on a call is in the block from the
// start: constants, and all that is known of weights. For every other parameter there is a record,
// which the head kernel follows: it finds the words of the call and writes the parameter, in a
// warp of its own.

#ifndef SHAPEJIT_RT_CUDA_PATCH_H
#define SHAPEJIT_RT_CUDA_PATCH_H

#include "Array.h"
#include "Kernel.h"
#include "Memory.h"

#include "shapejit_rt/graph.h"

namespace shapejit::rt::cuda {

/// What the head kernel does for one parameter. `passes/nvgpu/head.py` reads it. Head kernels are
/// saved with programs: another layout, or another way to share records among threads, takes
/// another `RECORDS` in `python/shapejit/gpu/graph.py`.
struct alignas(16) PatchRecord {
  enum Kind : uint8_t { kWord4 = 0, kWord8 = 1, kTensorMap = 2, kEncodedMap = 3 };

  static constexpr int32_t kAddress = 0, kDims = 1, kStrides = 6, kSlots = 10;

  uint32_t offset; ///< of the parameter in the block, in bytes
  Kind kind;
  uint8_t rank;         ///< of a tensor map
  uint8_t elementShift; ///< logarithm of an element's bytes
  uint8_t strides;      ///< bit i: the stride of dim i + 1 depends on the call
  uint32_t known;       ///< bit i: slot i holds a value, not the number of a word
  uint32_t reserved;
  /// A word: what is written. A tensor map: its address, the sizes of 5 dims, and the strides, in
  /// elements, of all but the first. An encoded map: the number of the first of its words.
  int64_t slots[kSlots];
};
static_assert(sizeof(PatchRecord) == 96, "the head kernel reads records of 96 bytes");

/// A launch of a region, with the numbers of words for what its kernel takes.
struct RegionLaunch {
  const ShapejitRtCudaKernel *kernel;
  const int32_t *operands;
  const int32_t *values;
  const int32_t *waits; ///< numbers of launches ahead of it
  int32_t operandCount;
  int32_t waitCount;
  uint32_t ctas;
  int64_t entry; ///< where its entry starts in the block
};

/// The launches of a region as they were given, checked.
struct RegionLaunches {
  /// Copies and checks them; `wordCount` bounds the numbers of words.
  Status make(const ShapejitRtCudaProgramLaunch *given, int32_t count, int32_t wordCount,
              const Device &device);

  Array<RegionLaunch> launches;
  int64_t blockBytes = 0;

private:
  Status add(const ShapejitRtCudaProgramLaunch &given, int32_t number, int32_t wordCount,
             const Device &device);

  Status addWaits(const ShapejitRtCudaProgramLaunch &given, int32_t number, int32_t &count);

  Array<int32_t> numbers; ///< of words and launches, of all launches
};

/// The block of a region before any call, and what calls change in it. Made for given fixed words.
class PatchTable {
public:
  /// The first `callWords` of `words` are those of a call and not looked at.
  Status make(Device &device, const RegionLaunches &region, const int64_t *words,
              int32_t callWords);
  ~PatchTable();

  /// Fails if a word of a call breaks a rule of its kernel, naming kernel, value and rule.
  Status check(const RegionLaunches &region, const int64_t *words) const;

  /// Words of a map that is encoded for every call: maps in im2col mode cannot be changed in place.
  static constexpr int32_t kMapWords = sizeof(abi::TensorMap) / sizeof(int64_t);
  int32_t encodedWords() const { return kMapWords * encoded.size(); }

  /// Encodes these maps for a call; `to` receives `encodedWords` words, which the head kernel is
  /// given behind those of the call. The device's context is current.
  Status encode(Device &device, const int64_t *words, int64_t *to) const;

  /// What kernels take as scratch memory; both parts 0: nothing.
  WorkspaceNeed workspaceNeed() const { return need; }

  /// Makes a block on the device. `workspace` is where its zeros end and the scratch part starts.
  Status makeBlock(Device &device, abi::Address workspace, DeviceMemory *&block) const;

  /// The records, on the device.
  const MemoryRef &records() const { return onDevice; }
  int32_t recordCount() const { return list.size(); }

private:
  /// Where the address of a workspace is to be written.
  struct WorkspacePlace {
    int64_t offset;
    int64_t zeroed;
  };
  /// What holds for a word, whatever the others are. More may be allowed, see `checkFully`.
  struct Rule {
    int32_t word;
    int64_t least, most;
    uint64_t clear; ///< bits that are 0
  };
  struct EncodedMap {
    const RegionLaunch *launch;
    const Parameter *parameter;
  };
  class Builder;

  Status checkFully(const RegionLaunches &region, const int64_t *words) const;
  Status checkSizes(const int64_t *words) const;

  unsigned char *block = nullptr;
  int64_t blockBytes = 0;
  Array<PatchRecord> list;
  Array<WorkspacePlace> places;
  Array<EncodedMap> encoded;
  Array<Rule> rules;
  /// A fixed word lies outside of what its rule allows, so it takes a closer look at every call.
  bool unusual = false;
  WorkspaceNeed need;
  MemoryRef onDevice;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_PATCH_H
