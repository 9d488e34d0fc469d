// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensor maps: the descriptors by which the tensor memory accelerator (TMA) finds tiles.
//
// The driver cannot encode a map of an empty tensor, yet kernels are launched with such operands: a
// product over K = 0 has a result. They get a map of a single zero in memory of the library's own,
// with all sizes 1. Whatever tile a kernel then loads consists of zeros, that element and the fill
// beyond the bounds; so a kernel that takes one step along K in any case still adds nothing, and
// none ever reads memory that is not there, as the address of an empty tensor may be anything. A
// store to an empty tensor would break this, but a grid over an empty result has no units. The same
// goes for images in which a window has no place.

#ifndef SHAPEJIT_RT_CUDA_TENSOR_MAP_H
#define SHAPEJIT_RT_CUDA_TENSOR_MAP_H

#include "Device.h"

namespace shapejit::rt::cuda {

/// The part of a tensor map that does not change from call to call.
struct TensorMapPlan {
  /// From the description of a kernel's parameter, a tensor map or an im2col map; `what` names it
  /// in texts. Value numbers are checked by the caller.
  Status make(const ShapejitRtCudaParameter &parameter, const char *what);

  /// Encodes the map for a call. `names` are those of the values.
  Status encode(const Device &device, void *address, const int64_t *values,
                const char *const *names, abi::TensorMap &map) const;

  /// Encodes what of the map does not depend on the call, and the pitches that are given, in bytes;
  /// the rest stands for a tensor that is neither small nor empty and lies at `address`. What is
  /// left is filled in on the device, see PatchRecord.
  Status encodeOutline(abi::Address address, const uint64_t *pitches, abi::TensorMap &map) const;

  /// Whether a tensor map can have a stride, in elements, along a dim of more than one.
  bool hasPitch(int64_t stride) const;

  /// What the driver takes as pitch of a dim of size 1, whatever its stride is.
  static constexpr uint64_t kLeastPitch = 16;
  /// Bounds of what the driver takes.
  static constexpr int64_t kMostElements = INT64_C(1) << 32; // along a dim
  static constexpr int64_t kPitchBound = INT64_C(1) << 40;   // bytes from one index of a dim on

  int32_t element = 0;
  int32_t elementBytes = 0;
  uint32_t rank = 0;
  int32_t dims[5] = {};
  int32_t strides[4] = {};
  uint32_t box[5] = {};
  abi::TensorMapSwizzle swizzle = abi::kSwizzleNone;
  abi::TensorMapPromotion promotion = abi::kPromotionNone;

  // Of an image, whose box is channels and pixels: places of the window, see
  // ShapejitRtCudaParameter. `tensormap.replace` does not know such maps.
  bool im2col = false;
  int32_t lower[3] = {};
  int32_t upper[3] = {};
  uint32_t steps[5] = {1, 1, 1, 1, 1}; ///< of all dims, as the driver takes them

private:
  Status makeIm2col(const ShapejitRtCudaParameter &parameter, const char *what);
  bool hasNoPlaces(const uint64_t *sizes) const;
  bool isInRange(int64_t stride) const;
  Status encodeAt(void *address, const uint64_t *sizes, const uint64_t *pitches,
                  abi::TensorMap &map) const;
  Status encodeEmpty(const Device &device, abi::TensorMap &map) const;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_TENSOR_MAP_H
