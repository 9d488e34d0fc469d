// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Tensors.h"

using namespace shapejit::calls;

Torch shapejit::calls::torch;
Names shapejit::calls::names;

Reading shapejit::calls::readTensor(PyObject *object, dlpack::Tensor &tensor, bool &wantsGrad) {
  if (!PyType_IsSubtype(Py_TYPE(object), torch.tensor))
    return Reading::Unusual;
  if (torch.exchange->describe(object, &tensor)) {
    PyErr_Clear(); // sparse, or without memory: whoever looks at it closely says so
    return Reading::Unusual;
  }
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
