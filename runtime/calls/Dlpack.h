// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The part of DLPack 1.3's C exchange interface that is used here: how a library of tensors, such
// as torch, lets native code look at a tensor without going through Python.

#ifndef SHAPEJIT_CALLS_DLPACK_H
#define SHAPEJIT_CALLS_DLPACK_H

#include <cstdint>

namespace shapejit::calls::dlpack {

/// What a capsule with a table of functions is called.
constexpr char kCapsule[] = "dlpack_exchange_api";

/// The version of the interface that the table below is of.
constexpr uint32_t kMajor = 1;

/// Codes of element types.
constexpr uint8_t kFloat = 2;

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

/// A tensor that somebody else owns. Strides are in elements.
struct Tensor {
  void *data;
  Device device;
  int32_t rank;
  DataType type;
  int64_t *shape;
  int64_t *strides;
  uint64_t byteOffset;
};

struct Exchange {
  uint32_t major, minor;
  const Exchange *older;
  void *allocate;
  void *fromObject;
  void *toObject;
  /// Describes an object that is a tensor, as long as it lives and is not changed; 0, or -1 with a
  /// Python exception.
  int (*describe)(void *object, Tensor *tensor);
  void *currentStream;
};

} // namespace shapejit::calls::dlpack

#endif // SHAPEJIT_CALLS_DLPACK_H
