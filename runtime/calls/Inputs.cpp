// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Calls of programs: the sizes of their inputs, and the launch with their addresses.

#include "Inputs.h"
#include "Types.h"

#include <cstring>
#include <vector>

using namespace shapejit::calls;

namespace {

/// An item of a list or a tuple; borrowed, null with an exception.
PyObject *itemOf(PyObject *sequence, Py_ssize_t index) {
  return PyTuple_Check(sequence) ? PyTuple_GetItem(sequence, index)
                                 : PyList_GetItem(sequence, index);
}

/// Their number, -1 with an exception.
Py_ssize_t countOf(PyObject *sequence) {
  return PyTuple_Check(sequence) ? PyTuple_Size(sequence) : PyList_Size(sequence);
}

// Sizes.

/// What a leaf has to be.
struct Expected {
  Py_ssize_t leaf;
  dlpack::DataType type;
  dlpack::Device device;
  int32_t rank;

  bool fits(const dlpack::Tensor &tensor) const {
    return tensor.rank == rank && memcmp(&tensor.type, &type, sizeof(type)) == 0 &&
           memcmp(&tensor.device, &device, sizeof(device)) == 0;
  }
};

struct Sizes {
  PyObject head; ///< as every object of Python's begins
  std::vector<Expected> expected;
  Py_ssize_t count; ///< of all sizes
};

/// Sizes(expected, device type, device number): of each tensor its leaf, one of its element type,
/// its rank
PyObject *newSizes(PyTypeObject *type, PyObject *arguments, PyObject *) {
  PyObject *list;
  dlpack::Device device;
  if (!PyArg_ParseTuple(arguments, "O!ii", &PyList_Type, &list, &device.type, &device.id))
    return nullptr;
  auto *sizes = makeRecord<Sizes>(type);
  Ref object(reinterpret_cast<PyObject *>(sizes));
  Py_ssize_t count = sizes ? PyList_Size(list) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Expected one;
    PyObject *like;
    dlpack::Tensor tensor;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "nOi", &one.leaf, &like, &one.rank))
      return nullptr;
    if (!PyType_IsSubtype(Py_TYPE(like), torch.tensor)) {
      PyErr_SetString(PyExc_TypeError, "what a leaf is like is a tensor");
      return nullptr;
    }
    if (torch.exchange->describe(like, &tensor))
      return nullptr;
    one.type = tensor.type;
    one.device = device;
    sizes->expected.push_back(one);
    sizes->count += one.rank;
  }
  return object.release();
}

void endSizes(PyObject *object) { endRecord(reinterpret_cast<Sizes *>(object)); }

/// sizes.read(leaves): of all tensors in a row; None if one is not as it has to be
PyObject *readSizes(PyObject *self, PyObject *leaves) {
  const auto &sizes = *reinterpret_cast<Sizes *>(self);
  Ref all(PyTuple_New(sizes.count));
  Py_ssize_t next = 0;
  for (const Expected &each : sizes.expected) {
    PyObject *leaf = all ? itemOf(leaves, each.leaf) : nullptr;
    if (!leaf)
      return nullptr;
    dlpack::Tensor tensor;
    if (!PyType_IsSubtype(Py_TYPE(leaf), torch.tensor))
      Py_RETURN_NONE;
    if (torch.exchange->describe(leaf, &tensor)) {
      PyErr_Clear(); // whoever looks at it closely says what is wrong
      Py_RETURN_NONE;
    }
    if (!each.fits(tensor))
      Py_RETURN_NONE;
    switch (checkMemory(leaf, tensor)) {
    case Reading::Unusual:
      Py_RETURN_NONE;
    case Reading::Failed:
      return nullptr;
    case Reading::Done:
      break;
    }
    for (int32_t i = 0; i < tensor.rank; ++i) {
      PyObject *size = PyLong_FromLongLong(tensor.shape[i]);
      if (!size || PyTuple_SetItem(all.get(), next++, size))
        return nullptr;
    }
  }
  return all.release();
}

// Inputs.

/// A tensor that a program reads.
struct Input {
  Py_ssize_t leaf;
  bool floating; ///< torch may have to negate its values
};

struct Inputs {
  PyObject head; ///< as every object of Python's begins
  std::vector<Input> inputs;
  uint64_t oddBits;  ///< those of an address that have to be 0
  uint64_t forEmpty; ///< address for a tensor without memory
};

/// The function that queues a program, as the runtime and host programs have it.
using RunFunction = int32_t (*)(void *handle, const void *symbols, void *const *buffers,
                                void *arena, void *stream);

/// Inputs(inputs, alignment, for_empty): of each its leaf, and whether it is a floating-point
/// number
PyObject *newInputs(PyTypeObject *type, PyObject *arguments, PyObject *) {
  PyObject *list;
  unsigned long long alignment, forEmpty;
  if (!PyArg_ParseTuple(arguments, "O!KK", &PyList_Type, &list, &alignment, &forEmpty))
    return nullptr;
  auto *inputs = makeRecord<Inputs>(type);
  Ref object(reinterpret_cast<PyObject *>(inputs));
  Py_ssize_t count = inputs ? PyList_Size(list) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Input one;
    int floating;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "np", &one.leaf, &floating))
      return nullptr;
    one.floating = floating != 0;
    inputs->inputs.push_back(one);
  }
  if (inputs) {
    inputs->oddBits = alignment - 1;
    inputs->forEmpty = forEmpty;
  }
  return object.release();
}

void endInputs(PyObject *object) { endRecord(reinterpret_cast<Inputs *>(object)); }

bool isContiguous(const dlpack::Tensor &tensor) {
  int64_t step = 1;
  bool contiguous = true;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0)
      return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != step)
      contiguous = false;
    step *= tensor.shape[i];
  }
  return contiguous;
}

/// The address of an input that kernels can read in place; else it is unusual.
Reading readInput(const Inputs &inputs, const Input &input, PyObject *leaf, uint64_t &address) {
  dlpack::Tensor tensor;
  if (torch.exchange->describe(leaf, &tensor)) {
    PyErr_Clear();
    return Reading::Unusual;
  }
  address = addressOf(tensor);
  if (address & inputs.oddBits || !isContiguous(tensor))
    return Reading::Unusual;
  if (input.floating) {
    Ref negated(PyObject_CallMethodObjArgs(leaf, names.isNeg, nullptr));
    if (!negated)
      return Reading::Failed;
    if (negated.get() != Py_False)
      return Reading::Unusual;
  }
  if (!address)
    address = inputs.forEmpty;
  return Reading::Done;
}

/// Adds the addresses of a call's tensors.
Reading readAll(const Inputs &inputs, PyObject *leaves, PyObject *weights, PyObject *outputs,
                std::vector<uint64_t> &buffers) {
  char *words;
  Py_ssize_t bytes, results = countOf(outputs);
  if (results < 0 || PyBytes_AsStringAndSize(weights, &words, &bytes))
    return Reading::Failed;
  size_t before = inputs.inputs.size(), between = static_cast<size_t>(bytes) / sizeof(uint64_t);
  buffers.resize(before + between + static_cast<size_t>(results));
  for (size_t i = 0; i < before; ++i) {
    PyObject *leaf = itemOf(leaves, inputs.inputs[i].leaf);
    if (!leaf)
      return Reading::Failed;
    Reading reading = readInput(inputs, inputs.inputs[i], leaf, buffers[i]);
    if (reading != Reading::Done)
      return reading;
  }
  memcpy(buffers.data() + before, words, between * sizeof(uint64_t));
  for (Py_ssize_t i = 0; i < results; ++i) {
    dlpack::Tensor tensor;
    PyObject *output = itemOf(outputs, i);
    if (!output || torch.exchange->describe(output, &tensor))
      return Reading::Failed;
    Reading reading = checkMemory(output, tensor);
    if (reading != Reading::Done)
      return reading;
    uint64_t address = addressOf(tensor);
    buffers[before + between + static_cast<size_t>(i)] = address ? address : inputs.forEmpty;
  }
  return Reading::Done;
}

uint64_t wordOf(PyObject *number) { return PyLong_AsUnsignedLongLong(number); }

template <typename Pointer> Pointer pointerOf(uint64_t word) {
  return reinterpret_cast<Pointer>(word);
}

/// inputs.run(leaves, weights, outputs, function, handle, symbols, arena, stream): the function's
/// status; None if an input has to be copied first
PyObject *run(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 8) {
    PyErr_Format(PyExc_TypeError, "a program is run with 8 arguments, not %zd", count);
    return nullptr;
  }
  uint64_t words[5];
  for (int i = 0; i < 5; ++i)
    words[i] = wordOf(arguments[3 + i]);
  if (PyErr_Occurred())
    return nullptr;
  std::vector<uint64_t> buffers;
  switch (readAll(*reinterpret_cast<Inputs *>(self), arguments[0], arguments[1], arguments[2],
                  buffers)) {
  case Reading::Unusual:
    Py_RETURN_NONE;
  case Reading::Failed:
    return nullptr;
  case Reading::Done:
    break;
  }
  int32_t status;
  // It waits while the stream's queue is full.
  Py_BEGIN_ALLOW_THREADS;
  status = pointerOf<RunFunction>(words[0])(
      pointerOf<void *>(words[1]), pointerOf<const void *>(words[2]),
      reinterpret_cast<void *const *>(buffers.data()), pointerOf<void *>(words[3]),
      pointerOf<void *>(words[4]));
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(status);
}

PyTypeObject *sizesType, *inputsType;

} // namespace

int shapejit::calls::addInputTypes(PyObject *module) {
  static PyMethodDef sizesMethods[] = {{"read", readSizes, METH_O, nullptr},
                                       {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot sizesSlots[] = {slot(Py_tp_new, newSizes),
                                     slot(Py_tp_dealloc, endSizes),
                                     {Py_tp_methods, sizesMethods},
                                     {0, nullptr}};
  static PyType_Spec sizesSpec = {"shapejit._calls.Sizes", sizeof(Sizes), 0, Py_TPFLAGS_DEFAULT,
                                  sizesSlots};
  static PyMethodDef inputsMethods[] = {{"run", method(run), METH_FASTCALL, nullptr},
                                        {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot inputsSlots[] = {slot(Py_tp_new, newInputs),
                                      slot(Py_tp_dealloc, endInputs),
                                      {Py_tp_methods, inputsMethods},
                                      {0, nullptr}};
  static PyType_Spec inputsSpec = {"shapejit._calls.Inputs", sizeof(Inputs), 0, Py_TPFLAGS_DEFAULT,
                                   inputsSlots};
  return addType(module, sizesSpec, sizesType) || addType(module, inputsSpec, inputsType) ? -1 : 0;
}
