// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The module `_calls`: what happens between a call from Python and the launch. It keeps to the
// stable ABI of CPython 3.11, so that one file serves all versions since.

#include "Calls.h"
#include "Inputs.h"
#include "Plan.h"
#include "Types.h"

using namespace shapejit::calls;

namespace {

/// use(tensor, exchange, is_grad_enabled): the class of tensors, its capsule, and a function
PyObject *use(PyObject *, PyObject *arguments) {
  PyObject *tensor, *capsule, *isGradEnabled;
  if (!PyArg_ParseTuple(arguments, "O!OO", &PyType_Type, &tensor, &capsule, &isGradEnabled))
    return nullptr;
  auto *exchange =
      static_cast<const dlpack::Exchange *>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  while (exchange && exchange->major != dlpack::kMajor)
    exchange = exchange->older;
  if (!exchange) {
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_ImportError, "torch's tensors have no exchange interface of version %u",
                   dlpack::kMajor);
    return nullptr;
  }
  torch = {reinterpret_cast<PyTypeObject *>(Ref::more(tensor)), exchange, Ref::more(isGradEnabled)};
  Py_RETURN_NONE;
}

int makeNames() {
  const struct {
    PyObject *&name;
    const char *text;
  } all[] = {{names.check, "check"},
             {names.isNeg, "is_neg"},
             {names.kernel, "kernel"},
             {names.requiresGrad, "requires_grad"},
             {names.storageOffset, "storage_offset"},
             {names.used, "used"}};
  for (const auto &each : all)
    if (!(each.name = PyUnicode_InternFromString(each.text)))
      return -1;
  return 0;
}

} // namespace

int shapejit::calls::addType(PyObject *module, PyType_Spec &spec, PyTypeObject *&type) {
  type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
  return type ? PyModule_AddType(module, type) : -1;
}

PyMODINIT_FUNC PyInit__calls() {
  static PyMethodDef functions[] = {{"use", use, METH_VARARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
  PyObject *module = PyModule_Create(&definition);
  if (module &&
      (makeNames() || addPlanTypes(module) || addCallsType(module) || addInputTypes(module))) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
