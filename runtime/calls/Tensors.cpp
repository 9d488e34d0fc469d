// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Tensors.h"

#include <algorithm>

using namespace shapejit::calls;

Torch shapejit::calls::torch;
Names shapejit::calls::names;

namespace {

// No storage is so large that an address from here on could be a distance from its start.
constexpr uint64_t kBeyondDistances = uint64_t(1) << 40;

bool isEmpty(const dlpack::Tensor &tensor) {
  return std::find(tensor.shape, tensor.shape + tensor.rank, 0) != tensor.shape + tensor.rank;
}

} // namespace

Reading shapejit::calls::checkMemory(PyObject *object, const dlpack::Tensor &tensor) {
  uint64_t address = addressOf(tensor);
  if (address >= kBeyondDistances || isEmpty(tensor))
    return Reading::Done;
  Ref offset(PyObject_CallMethodObjArgs(object, names.storageOffset, nullptr));
  if (!offset)
    return Reading::Failed;
  if (!PyLong_Check(offset.get())) // a symbol, of a fake tensor
    return Reading::Unusual;
  uint64_t elements = PyLong_AsUnsignedLongLong(offset.get());
  if (PyErr_Occurred())
    return Reading::Failed;
  return address == elements * (tensor.type.bits * tensor.type.lanes / 8) ? Reading::Unusual
                                                                          : Reading::Done;
}

Reading shapejit::calls::readTensor(PyObject *object, dlpack::Tensor &tensor, bool &wantsGrad) {
  if (!PyType_IsSubtype(Py_TYPE(object), torch.tensor))
    return Reading::Unusual;
  if (torch.exchange->describe(object, &tensor)) {
    PyErr_Clear(); // sparse, or without memory: whoever looks at it closely says so
    return Reading::Unusual;
  }
  Reading reading = checkMemory(object, tensor);
  if (reading != Reading::Done)
    return reading;
  // Memory does not hold the values of a tensor that torch negates when it reads it.
  Ref negated(PyObject_CallMethodObjArgs(object, names.isNeg, nullptr));
  if (!negated)
    return Reading::Failed;
  if (negated.get() != Py_False)
    return Reading::Unusual;
  Ref grad(PyObject_GetAttr(object, names.requiresGrad));
  if (!grad)
    return Reading::Failed;
  wantsGrad |= grad.get() != Py_False;
  return Reading::Done;
}

int64_t shapejit::calls::reachOf(const dlpack::Tensor &tensor) {
  int64_t last = 0;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0)
      return 0;
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return (last + 1) * (tensor.type.bits * tensor.type.lanes / 8);
}

int shapejit::calls::isGradEnabled() {
  Ref enabled(PyObject_CallNoArgs(torch.isGradEnabled));
  return enabled ? enabled.get() != Py_False : -1;
}
