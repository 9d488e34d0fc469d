// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the head kernel of a program does, on the host and with the fake driver's tensor maps. It is
// written from the meaning of the records alone; the kernel itself is `passes/nvgpu/head.py`.

#ifndef SHAPEJIT_RT_TEST_HEAD_TWIN_H
#define SHAPEJIT_RT_TEST_HEAD_TWIN_H

#include "FakeCuda.h"

#include "../lib/cuda/Patch.h"

#include <cstring>

/// The parameters of a head kernel: table, block, address of zeros, number of records, words.
struct HeadParameters {
  explicit HeadParameters(const void *const *parameters) {
    std::memcpy(&records, parameters[0], 8);
    std::memcpy(&block, parameters[1], 8);
    std::memcpy(&nothing, parameters[2], 8);
    std::memcpy(&count, parameters[3], 4);
    words = static_cast<const unsigned char *>(parameters[4]);
  }

  int64_t value(const shapejit::rt::cuda::PatchRecord &record, int slot) const {
    int64_t held = record.slots[slot];
    if (record.known >> slot & 1)
      return held;
    int64_t word;
    std::memcpy(&word, words + 8 * held, 8);
    return word;
  }

  const shapejit::rt::cuda::PatchRecord *records;
  unsigned char *block;
  uint64_t nothing;
  uint32_t count;
  const unsigned char *words;
};

inline void patchMap(const HeadParameters &from, const shapejit::rt::cuda::PatchRecord &record,
                     unsigned char *at) {
  using Record = shapejit::rt::cuda::PatchRecord;
  FakeTensorMap map;
  std::memcpy(&map, at, sizeof(map));
  bool empty = false;
  for (int i = 0; i < record.rank; ++i)
    empty |= from.value(record, Record::kDims + i) == 0;
  map.address = empty ? from.nothing : static_cast<uint64_t>(from.value(record, Record::kAddress));
  for (int i = 0; i < record.rank; ++i)
    map.dims[i] = empty ? 1 : static_cast<uint64_t>(from.value(record, Record::kDims + i));
  for (int i = 0; i + 1 < record.rank; ++i) {
    if (!(record.strides >> i & 1))
      continue;
    uint64_t pitch = static_cast<uint64_t>(from.value(record, Record::kStrides + i))
                     << record.elementShift;
    map.pitches[i] = pitch % 16 || pitch >> 40 ? 16 : pitch;
  }
  std::memcpy(at, &map, sizeof(map));
}

/// Runs a head kernel of so many threads, a warp for each record.
inline void runHead(const void *const *parameters, uint32_t threads) {
  using Record = shapejit::rt::cuda::PatchRecord;
  HeadParameters from(parameters);
  for (uint32_t warp = 0; warp < threads / 32 && warp < from.count; ++warp) {
    const Record &record = from.records[warp];
    unsigned char *at = from.block + record.offset;
    int64_t word = from.value(record, 0);
    if (record.kind == Record::kTensorMap)
      patchMap(from, record, at);
    else if (record.kind == Record::kEncodedMap)
      std::memcpy(at, from.words + 8 * record.slots[0], sizeof(FakeTensorMap));
    else
      std::memcpy(at, &word, record.kind == Record::kWord4 ? 4 : 8);
  }
}

#endif // SHAPEJIT_RT_TEST_HEAD_TWIN_H
