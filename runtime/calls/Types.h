// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Python types whose objects are C++ records.

#ifndef SHAPEJIT_CALLS_TYPES_H
#define SHAPEJIT_CALLS_TYPES_H

#include "Tensors.h"

#include <new>

namespace shapejit::calls {

/// A new object of such a type, its record as C++ makes it; null with an exception. The objects
/// take no part in garbage collection: what they refer to must not refer to them.
template <typename Record> Record *makeRecord(PyTypeObject *type) {
  PyObject *object = PyType_GenericAlloc(type, 0);
  if (!object)
    return nullptr;
  PyObject head = *object;
  auto *record = new (object) Record();
  *reinterpret_cast<PyObject *>(record) = head;
  return record;
}

/// Ends one whose references were given back.
template <typename Record> void endRecord(Record *record) {
  auto *object = reinterpret_cast<PyObject *>(record);
  PyTypeObject *type = Py_TYPE(object);
  record->~Record();
  PyObject_Free(object);
  Py_DECREF(reinterpret_cast<PyObject *>(type));
}

/// Makes a type and adds it to a module: 0, or -1 with an exception.
int addType(PyObject *module, PyType_Spec &spec, PyTypeObject *&type);

/// A slot of a function.
template <typename Function> PyType_Slot slot(int number, Function *function) {
  return {number, reinterpret_cast<void *>(function)};
}

/// A method that takes its arguments as an array.
template <typename Function> PyCFunction method(Function *function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

} // namespace shapejit::calls

#endif // SHAPEJIT_CALLS_TYPES_H
