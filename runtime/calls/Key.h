// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The arguments of an operator's call, and what of them tells one kind of calls from another.

#ifndef SHAPEJIT_CALLS_KEY_H
#define SHAPEJIT_CALLS_KEY_H

#include "Tensors.h"

#include <vector>

namespace shapejit::calls {

/// All that decides on the kernel of a call and the numbers that it is called with, as words.
class Key {
public:
  void add(uint64_t word) { words[count++] = word; }
  uint64_t hash() const;
  bool operator==(const std::vector<uint64_t> &other) const;
  std::vector<uint64_t> copy() const { return {words, words + count}; }

  /// Dims of a tensor for which there is room.
  static constexpr int32_t kMostDims = 64;
  /// Tensors of a call.
  static constexpr int kTensors = 6;

private:
  int count = 0;
  // Of every tensor its type, place, alignment, sizes and strides; some words of the call.
  uint64_t words[kTensors * (3 + 2 * kMostDims) + 8];
};

/// A call of `gemm`.
struct GemmCall {
  /// The order of the arguments: tensors first, in the order in which kernels take them.
  enum Argument {
    kA,
    kB,
    kGate,
    kBias,
    kResidual,
    kOut,
    kActivation,
    kOutType,
    kPrecision,
    kFinal,
    kArguments
  };

  dlpack::Tensor tensors[Key::kTensors];
  bool given[Key::kTensors] = {};
  /// Whether the key leaves out how many rows there are: those of `a`, which are more than one.
  bool anyRows = false;
  Key key;

  /// Reads the arguments and makes the key. `usesTf32` is called with the precision for products of
  /// float32, and says whether they may be rounded.
  Reading read(PyObject *const *arguments, PyObject *usesTf32);

  /// Of `a`, if it is a matrix.
  int64_t rows = 0;
  /// Whether memory of the result is memory of an operand.
  bool sharesMemory() const;

private:
  Reading readTensors(PyObject *const *arguments);
  Reading addWords(PyObject *const *arguments, PyObject *usesTf32);
  void addTensor(int number);
  bool fitsAnyRows() const;
};

} // namespace shapejit::calls

#endif // SHAPEJIT_CALLS_KEY_H
