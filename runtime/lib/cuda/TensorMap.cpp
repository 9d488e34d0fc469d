// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "TensorMap.h"

#include <cinttypes>
#include <initializer_list>

using namespace shapejit::rt::cuda;

namespace {

// The driver's rules, from the documentation of cuTensorMapEncodeTiled.
constexpr int32_t kMostBox = 256;     // elements of a box along a dim
constexpr int32_t kMostPixels = 1024; // of a load in im2col mode
constexpr int32_t kMostStep = 8;      // between places of a window
constexpr uint64_t kGranule = 16;     // bytes that addresses and pitches are multiples of
constexpr const char *kWayOut = "use a kernel that takes no tensor maps, or copy the tensor";

int32_t bytesOf(int32_t element) {
  switch (element) {
  case ShapejitRtCudaU8:
    return 1;
  case ShapejitRtCudaU16:
  case ShapejitRtCudaF16:
  case ShapejitRtCudaBF16:
    return 2;
  case ShapejitRtCudaU32:
  case ShapejitRtCudaI32:
  case ShapejitRtCudaF32:
  case ShapejitRtCudaTF32:
    return 4;
  case ShapejitRtCudaU64:
  case ShapejitRtCudaI64:
  case ShapejitRtCudaF64:
    return 8;
  default:
    return 0;
  }
}

bool isSwizzle(int32_t bytes) { return bytes == 0 || bytes == 32 || bytes == 64 || bytes == 128; }

bool isPromotion(int32_t bytes) {
  return bytes == 0 || bytes == 64 || bytes == 128 || bytes == 256;
}

} // namespace

Status TensorMapPlan::make(const ShapejitRtCudaParameter &parameter, const char *what) {
  auto bad = [what](const char *rule, int32_t value) {
    return fail(ShapejitRtCudaBadInterface, "%s: %s, not %d", what, rule, value);
  };
  im2col = parameter.kind == ShapejitRtCudaIm2colMap;
  element = parameter.element;
  elementBytes = bytesOf(element);
  if (elementBytes == 0)
    return bad("the element type must be one that tensor maps have", element);
  if (parameter.rank < 1 || parameter.rank > 5)
    return bad("a tensor map has 1 to 5 dims", parameter.rank);
  if (im2col && parameter.rank < 3)
    return bad("an im2col map has 3 to 5 dims", parameter.rank);
  rank = static_cast<uint32_t>(parameter.rank);
  if (im2col)
    SHAPEJIT_TRY(makeIm2col(parameter, what));
  for (uint32_t i = 0; i < rank; ++i) {
    if (!im2col && (parameter.box[i] < 1 || parameter.box[i] > kMostBox))
      return bad("a box has 1 to 256 elements in every dim", parameter.box[i]);
    box[i] = static_cast<uint32_t>(parameter.box[i]);
    dims[i] = parameter.dims[i];
    if (i > 0)
      strides[i - 1] = parameter.strides[i - 1];
  }
  int32_t row = parameter.box[0] * elementBytes;
  if (row % 16 != 0)
    return bad("the first dim of a box must be a multiple of 16 bytes", row);
  if (!isSwizzle(parameter.swizzle))
    return bad("the swizzle must be 0, 32, 64 or 128 bytes", parameter.swizzle);
  if (parameter.swizzle != 0 && row > parameter.swizzle)
    return bad("the first dim of a box must fit the swizzle's bytes", row);
  if (!isPromotion(parameter.promotion))
    return bad("the promotion must be 0, 64, 128 or 256 bytes", parameter.promotion);
  swizzle = static_cast<abi::TensorMapSwizzle>(parameter.swizzle == 0    ? abi::kSwizzleNone
                                               : parameter.swizzle == 32 ? abi::kSwizzle32B
                                               : parameter.swizzle == 64 ? abi::kSwizzle64B
                                                                         : abi::kSwizzle128B);
  promotion =
      static_cast<abi::TensorMapPromotion>(parameter.promotion == 0     ? abi::kPromotionNone
                                           : parameter.promotion == 64  ? abi::kPromotion64B
                                           : parameter.promotion == 128 ? abi::kPromotion128B
                                                                        : abi::kPromotion256B);
  return ShapejitRtCudaOk;
}

Status TensorMapPlan::makeIm2col(const ShapejitRtCudaParameter &parameter, const char *what) {
  auto bad = [what](const char *rule, int32_t value) {
    return fail(ShapejitRtCudaBadInterface, "%s: %s, not %d", what, rule, value);
  };
  if (parameter.box[0] < 1 || parameter.box[0] > kMostBox)
    return bad("a load in im2col mode has 1 to 256 channels", parameter.box[0]);
  if (parameter.box[1] < 1 || parameter.box[1] > kMostPixels)
    return bad("a load in im2col mode has 1 to 1024 pixels", parameter.box[1]);
  // By the number of spatial dims: bits of a corner.
  constexpr int kBits[] = {16, 8, 5};
  int32_t most = 1 << (kBits[rank - 3] - 1);
  for (uint32_t i = 0; i + 2 < rank; ++i) {
    for (int32_t corner : {parameter.lower[i], parameter.upper[i]})
      if (corner < -most || corner >= most)
        return bad("a corner of a window's places is out of range", corner);
    if (parameter.steps[i] < 1 || parameter.steps[i] > kMostStep)
      return bad("places of a window are 1 to 8 pixels apart", parameter.steps[i]);
    lower[i] = parameter.lower[i];
    upper[i] = parameter.upper[i];
    steps[i + 1] = static_cast<uint32_t>(parameter.steps[i]);
  }
  return ShapejitRtCudaOk;
}

/// Whether a window has no place in an image: TMA cannot describe that either.
bool TensorMapPlan::hasNoPlaces(const uint64_t *sizes) const {
  bool none = false;
  for (uint32_t i = 0; im2col && i + 2 < rank; ++i)
    none |= static_cast<int64_t>(sizes[i + 1]) - 1 + upper[i] < lower[i];
  return none;
}

Status TensorMapPlan::encode(const Device &device, void *address, const int64_t *values,
                             const char *const *names, abi::TensorMap &map) const {
  uint64_t sizes[5], pitches[4];
  bool empty = false;
  for (uint32_t i = 0; i < rank; ++i) {
    int64_t size = values[dims[i]];
    if (size < 0 || size > kMostElements)
      return fail(ShapejitRtCudaBadCall,
                  "dim %" PRIu32 " of its tensor map, %s = %" PRId64 ", must be within 0..%" PRId64,
                  i, names[dims[i]], size, kMostElements);
    sizes[i] = static_cast<uint64_t>(size);
    empty |= size == 0;
  }
  if (empty || hasNoPlaces(sizes))
    return encodeEmpty(device, map);
  if (!address || reinterpret_cast<uint64_t>(address) % kGranule != 0)
    return fail(ShapejitRtCudaBadCall, "its address %p must be a multiple of 16 bytes: %s", address,
                kWayOut);
  for (uint32_t i = 1; i < rank; ++i) {
    int64_t stride = values[strides[i - 1]];
    if (hasPitch(stride)) {
      pitches[i - 1] = static_cast<uint64_t>(stride * elementBytes);
      continue;
    }
    // The only index of a dim of size 1 is 0, so its stride is never used.
    if (sizes[i] == 1) {
      pitches[i - 1] = kLeastPitch;
      continue;
    }
    return fail(ShapejitRtCudaBadCall,
                "the stride of dim %" PRIu32 " of its tensor map, %s = %" PRId64
                " elements of %d bytes, must be %s: %s",
                i, names[strides[i - 1]], stride, elementBytes,
                isInRange(stride) ? "a multiple of 16 bytes" : "from 0 to under 2^40 bytes",
                kWayOut);
  }
  return encodeAt(address, sizes, pitches, map);
}

bool TensorMapPlan::isInRange(int64_t stride) const {
  return stride >= 0 && stride < kPitchBound / elementBytes;
}

bool TensorMapPlan::hasPitch(int64_t stride) const {
  return isInRange(stride) && static_cast<uint64_t>(stride * elementBytes) % kGranule == 0;
}

Status TensorMapPlan::encodeOutline(abi::Address address, const uint64_t *pitches,
                                    abi::TensorMap &map) const {
  // Drivers mark tensors of under 128 KiB in a bit of their own, which stays as it is on the
  // device, and refuse those that reach too far.
  const uint64_t sizes[5] = {1 << 17, 1, 1, 1, 1};
  return encodeAt(reinterpret_cast<void *>(address), sizes, pitches, map);
}

Status TensorMapPlan::encodeEmpty(const Device &device, abi::TensorMap &map) const {
  const uint64_t sizes[5] = {1, 1, 1, 1, 1};
  const uint64_t pitches[4] = {kLeastPitch, kLeastPitch, kLeastPitch, kLeastPitch};
  if (!im2col)
    return encodeAt(reinterpret_cast<void *>(device.nothing), sizes, pitches, map);
  TensorMapPlan plain = *this;
  for (uint32_t i = 0; i + 2 < rank; ++i) {
    plain.lower[i] = plain.upper[i] = 0;
    plain.steps[i + 1] = 1;
  }
  return plain.encodeAt(reinterpret_cast<void *>(device.nothing), sizes, pitches, map);
}

Status TensorMapPlan::encodeAt(void *address, const uint64_t *sizes, const uint64_t *pitches,
                               abi::TensorMap &map) const {
  if (im2col) {
    SHAPEJIT_CUDA_TRY(cuTensorMapEncodeIm2col, &map, element, rank, address, sizes, pitches, lower,
                      upper, /*channels*/ box[0], /*pixels*/ box[1], steps,
                      /*interleave: none*/ 0, swizzle, promotion,
                      /*fill beyond the bounds: zeros*/ 0);
    return ShapejitRtCudaOk;
  }
  SHAPEJIT_CUDA_TRY(cuTensorMapEncodeTiled, &map, element, rank, address, sizes, pitches, box,
                    steps, /*interleave: none*/ 0, swizzle, promotion,
                    /*fill beyond the bounds: zeros*/ 0);
  return ShapejitRtCudaOk;
}
