// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensors of torch, read from native code.

#ifndef SHAPEJIT_CALLS_TENSORS_H
#define SHAPEJIT_CALLS_TENSORS_H

#include "Dlpack.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace shapejit::calls {

/// A reference to a Python object that is given back at the end of the scope.
class Ref {
public:
  /// Takes over a new reference, or null.
  explicit Ref(PyObject *object = nullptr) : object(object) {}
  ~Ref() { Py_XDECREF(object); }
  Ref(const Ref &) = delete;
  Ref &operator=(const Ref &) = delete;

  /// Another reference to an object.
  static PyObject *more(PyObject *object) {
    Py_XINCREF(object);
    return object;
  }

  void reset(PyObject *other) {
    PyObject *old = object;
    object = other;
    Py_XDECREF(old);
  }
  PyObject *get() const { return object; }
  /// Hands the reference over to the caller.
  PyObject *release() {
    PyObject *given = object;
    object = nullptr;
    return given;
  }
  explicit operator bool() const { return object != nullptr; }

private:
  PyObject *object;
};

/// How reading ended.
enum class Reading {
  Done,
  Unusual, ///< it is left to Python; no exception is set
  Failed,  ///< a Python exception is set
};

/// torch, as far as it is needed here.
struct Torch {
  PyTypeObject *tensor = nullptr;
  const dlpack::Exchange *exchange = nullptr;
  PyObject *isGradEnabled = nullptr;
};

/// That of the process; set when the module is made ready, before anything else is called.
extern Torch torch;

/// Names of attributes, made once.
struct Names {
  PyObject *check, *isNeg, *kernel, *requiresGrad, *storageOffset, *used;
};
extern Names names;

/// What a tensor is, as long as it lives. What is no tensor, or has no memory with its values in
/// it, is unusual. `wantsGrad` is set if it requires a gradient.
Reading readTensor(PyObject *object, dlpack::Tensor &tensor, bool &wantsGrad);

/// The address of the first element.
inline uint64_t addressOf(const dlpack::Tensor &tensor) {
  return reinterpret_cast<uint64_t>(tensor.data) + tensor.byteOffset;
}

/// Finds out whether a tensor's elements are in memory; else it is unusual. Fake and distributed
/// tensors only stand for others, and a storage may have been emptied: they count addresses from 0.
Reading checkMemory(PyObject *object, const dlpack::Tensor &tensor);

/// Bytes from the first element to the end of the last one in memory.
int64_t reachOf(const dlpack::Tensor &tensor);

/// 1 or 0, -1 with an exception.
int isGradEnabled();

} // namespace shapejit::calls

#endif // SHAPEJIT_CALLS_TENSORS_H
