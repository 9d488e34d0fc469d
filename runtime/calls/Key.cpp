// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Key.h"

#include <cstring>

using namespace shapejit::calls;

namespace {

// What loads and stores of 16 bytes want addresses to be multiples of.
constexpr uint64_t kAlignment = 16;
// Longest name of an activation; there is none so long.
constexpr Py_ssize_t kMostLetters = 16;

bool isFloat32(const dlpack::Tensor &tensor) {
  return tensor.type.code == dlpack::kFloat && tensor.type.bits == 32;
}

} // namespace

uint64_t Key::hash() const {
  uint64_t hash = static_cast<uint64_t>(count);
  for (int i = 0; i < count; ++i) {
    hash = (hash ^ words[i]) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

bool Key::operator==(const std::vector<uint64_t> &other) const {
  return other.size() == static_cast<size_t>(count) &&
         memcmp(other.data(), words, sizeof(uint64_t) * other.size()) == 0;
}

Reading GemmCall::read(PyObject *const *arguments, PyObject *usesTf32) {
  Reading reading = readTensors(arguments);
  if (reading != Reading::Done)
    return reading;
  if (tensors[kA].rank == 2)
    rows = tensors[kA].shape[0];
  anyRows = fitsAnyRows();
  reading = addWords(arguments, usesTf32);
  if (reading != Reading::Done)
    return reading;
  for (int i = 0; i < Key::kTensors; ++i)
    if (given[i])
      addTensor(i);
  return Reading::Done;
}

Reading GemmCall::readTensors(PyObject *const *arguments) {
  bool wantsGrad = false;
  for (int i = 0; i < Key::kTensors; ++i) {
    if (arguments[i] == Py_None && i > kB)
      continue;
    Reading reading = readTensor(arguments[i], tensors[i], wantsGrad);
    if (reading != Reading::Done)
      return reading;
    if (tensors[i].rank > Key::kMostDims)
      return Reading::Unusual;
    given[i] = true;
  }
  if (!wantsGrad)
    return Reading::Done;
  int enabled = isGradEnabled(); // then the call is refused
  return enabled == 0 ? Reading::Done : enabled < 0 ? Reading::Failed : Reading::Unusual;
}

/// What is no tensor, and which tensors there are.
Reading GemmCall::addWords(PyObject *const *arguments, PyObject *usesTf32) {
  uint64_t flags = anyRows;
  for (int i = 0; i < Key::kTensors; ++i)
    flags |= static_cast<uint64_t>(given[i]) << (8 + i);
  // Kernels that move blocks need all of these aligned; the others only tell how they are read.
  for (int i : {kA, kB, kGate, kOut})
    if (given[i])
      flags |= addressOf(tensors[i]) % kAlignment << 16;
  if (isFloat32(tensors[kA])) {
    Ref tf32(PyObject_CallFunctionObjArgs(usesTf32, arguments[kPrecision], nullptr));
    if (!tf32)
      return Reading::Failed;
    flags |= static_cast<uint64_t>(tf32.get() == Py_True) << 24;
  }
  uint64_t letters[kMostLetters / 8] = {};
  if (arguments[kActivation] != Py_None) {
    if (!PyUnicode_Check(arguments[kActivation]))
      return Reading::Unusual;
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(arguments[kActivation], &length);
    if (!text)
      return Reading::Failed;
    if (length > kMostLetters)
      return Reading::Unusual;
    memcpy(letters, text, static_cast<size_t>(length));
    flags |= static_cast<uint64_t>(length + 1) << 32;
  }
  key.add(flags);
  for (uint64_t word : letters)
    key.add(word);
  // torch has one object for each dtype, for good.
  key.add(reinterpret_cast<uint64_t>(arguments[kOutType]));
  return Reading::Done;
}

/// Whether one plan serves calls with any number of rows: the product has a weight that all of them
/// share, and what has rows beside `a` has as many. 0 and 1 change what strides mean.
bool GemmCall::fitsAnyRows() const {
  if (tensors[kA].rank != 2 || tensors[kB].rank != 2 || rows <= 1)
    return false;
  if (given[kGate] && tensors[kGate].rank != 2)
    return false;
  // A bias with rows of its own fits the calls with as many only.
  if (given[kBias] && tensors[kBias].rank > 1 && tensors[kBias].shape[0] != 1)
    return false;
  for (int i : {kResidual, kOut})
    if (given[i] && (tensors[i].rank != 2 || tensors[i].shape[0] != rows))
      return false;
  return true;
}

void GemmCall::addTensor(int number) {
  const dlpack::Tensor &tensor = tensors[number];
  uint64_t type = tensor.type.code | static_cast<uint64_t>(tensor.type.bits) << 8 |
                  static_cast<uint64_t>(tensor.type.lanes) << 16;
  if (number == kBias || number == kResidual)
    type |= addressOf(tensor) % kAlignment << 48;
  key.add(type | static_cast<uint64_t>(tensor.rank) << 32);
  key.add(static_cast<uint64_t>(static_cast<uint32_t>(tensor.device.type)) << 32 |
          static_cast<uint32_t>(tensor.device.id));
  bool hasRows = number == kA || number == kResidual || number == kOut;
  for (int32_t i = anyRows && hasRows; i < tensor.rank; ++i)
    key.add(static_cast<uint64_t>(tensor.shape[i]));
  for (int32_t i = 0; i < tensor.rank; ++i)
    key.add(static_cast<uint64_t>(tensor.strides[i]));
}

bool GemmCall::sharesMemory() const {
  uint64_t start = addressOf(tensors[kOut]);
  uint64_t end = start + static_cast<uint64_t>(reachOf(tensors[kOut]));
  for (int i = 0; i < kOut; ++i) {
    if (!given[i])
      continue;
    uint64_t address = addressOf(tensors[i]);
    if (address < end && start < address + static_cast<uint64_t>(reachOf(tensors[i])))
      return true;
  }
  return false;
}
