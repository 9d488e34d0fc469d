// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Plan.h"
#include "Types.h"

#include <algorithm>
#include <cstring>

using namespace shapejit::calls;

PyTypeObject *shapejit::calls::preparedType;
PyTypeObject *shapejit::calls::planType;

namespace {

/// Integers of a sequence: 0, or -1 with an exception.
int readNumbers(PyObject *sequence, std::vector<int64_t> &numbers) {
  Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref item(PySequence_GetItem(sequence, i));
    if (!item)
      return -1;
    long long number = PyLong_AsLongLong(item.get());
    if (number == -1 && PyErr_Occurred())
      return -1;
    numbers.push_back(number);
  }
  return count < 0 ? -1 : 0;
}

// Prepared.

/// Prepared(loaded, kernel, launch, values, rows); rows are positions, constants and factors in
/// turn
PyObject *newPrepared(PyTypeObject *type, PyObject *arguments, PyObject *) {
  PyObject *loaded, *values, *rows;
  unsigned long long kernel, launch;
  if (!PyArg_ParseTuple(arguments, "OKKOO", &loaded, &kernel, &launch, &values, &rows))
    return nullptr;
  auto *made = makeRecord<Prepared>(type);
  if (!made)
    return nullptr;
  Ref object(reinterpret_cast<PyObject *>(made));
  made->loaded = Ref::more(loaded);
  made->kernel = reinterpret_cast<void *>(kernel);
  made->launch = reinterpret_cast<LaunchFunction>(launch);
  std::vector<int64_t> terms;
  if (readNumbers(values, made->values) || readNumbers(rows, terms))
    return nullptr;
  if (made->values.size() > kMostValues || terms.size() % 3 != 0) {
    PyErr_SetString(PyExc_ValueError, "a kernel has too many values, or rows are not in threes");
    return nullptr;
  }
  for (size_t i = 0; i < terms.size(); i += 3) {
    if (terms[i] < 0 || static_cast<size_t>(terms[i]) >= made->values.size()) {
      PyErr_SetString(PyExc_ValueError, "there is no such value of a kernel");
      return nullptr;
    }
    made->rows.push_back({static_cast<size_t>(terms[i]), terms[i + 1], terms[i + 2]});
  }
  return object.release();
}

void endPrepared(PyObject *object) {
  auto *prepared = reinterpret_cast<Prepared *>(object);
  Py_XDECREF(prepared->loaded);
  endRecord(prepared);
}

// Plan.

/// Plan(owner, clock, allocate, size, strides, dtype, device, rows)
PyObject *newPlan(PyTypeObject *type, PyObject *arguments, PyObject *) {
  PyObject *owner, *clock, *allocate, *size, *strides, *dtype, *device;
  long long rows;
  if (!PyArg_ParseTuple(arguments, "OOOO!OOOL", &owner, &clock, &allocate, &PyTuple_Type, &size,
                        &strides, &dtype, &device, &rows))
    return nullptr;
  std::vector<int64_t> sizes;
  if (readNumbers(size, sizes))
    return nullptr;
  auto *plan = makeRecord<Plan>(type);
  if (!plan)
    return nullptr;
  plan->owner = Ref::more(owner);
  plan->clock = Ref::more(clock);
  plan->allocate = Ref::more(allocate);
  plan->size = Ref::more(size);
  plan->strides = Ref::more(strides);
  plan->dtype = Ref::more(dtype);
  plan->device = Ref::more(device);
  plan->rows = rows;
  plan->empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  return reinterpret_cast<PyObject *>(plan);
}

/// Has a plan choose among others. It is whole by the time that the former ones go, since other
/// threads may run then.
void setChoices(Plan &plan, std::vector<int64_t> starts, std::vector<Prepared *> prepared) {
  plan.starts.swap(starts);
  plan.prepared.swap(prepared);
  for (Prepared *before : prepared)
    Py_XDECREF(reinterpret_cast<PyObject *>(before));
}

void endPlan(PyObject *object) {
  auto *plan = reinterpret_cast<Plan *>(object);
  setChoices(*plan, {}, {});
  for (PyObject *held : {plan->owner, plan->clock, plan->allocate, plan->size, plan->strides,
                         plan->dtype, plan->device})
    Py_XDECREF(held);
  endRecord(plan);
}

/// plan.choose(starts, prepared): which kernel serves from which number of rows on; the first from
/// 0
PyObject *choose(PyObject *object, PyObject *arguments) {
  auto &plan = *reinterpret_cast<Plan *>(object);
  PyObject *first, *prepared;
  std::vector<int64_t> starts;
  if (!PyArg_ParseTuple(arguments, "OO!", &first, &PyTuple_Type, &prepared) ||
      readNumbers(first, starts))
    return nullptr;
  Py_ssize_t count = PyTuple_Size(prepared);
  bool fits = static_cast<size_t>(count) == starts.size() && count > 0 && starts[0] <= 0 &&
              std::is_sorted(starts.begin(), starts.end());
  for (Py_ssize_t i = 0; fits && i < count; ++i) {
    PyObject *each = PyTuple_GetItem(prepared, i);
    fits = each == Py_None || Py_TYPE(each) == preparedType;
  }
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "starts ascend from 0, and each has a kernel or None");
    return nullptr;
  }
  std::vector<Prepared *> chosen;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *each = PyTuple_GetItem(prepared, i);
    chosen.push_back(each == Py_None ? nullptr : reinterpret_cast<Prepared *>(Ref::more(each)));
  }
  setChoices(plan, std::move(starts), std::move(chosen));
  Py_RETURN_NONE;
}

// Running.

/// The result of a call, and its address.
PyObject *makeResult(const Plan &plan, const GemmCall &call, uint64_t &address) {
  Ref size(Ref::more(plan.size));
  if (plan.anyRows) {
    PyObject *rows = PyLong_FromLongLong(call.rows);
    size.reset(rows ? PyTuple_New(2) : nullptr);
    if (!size) {
      Py_XDECREF(rows);
      return nullptr;
    }
    PyTuple_SetItem(size.get(), 0, rows);
    PyTuple_SetItem(size.get(), 1, Ref::more(PyTuple_GetItem(plan.size, 1)));
  }
  Ref result(
      PyObject_CallFunctionObjArgs(plan.allocate, size.get(), plan.strides, plan.dtype, nullptr));
  dlpack::Tensor tensor;
  if (!result || torch.exchange->describe(result.get(), &tensor))
    return nullptr;
  address = addressOf(tensor);
  if (!address && !plan.empty) {
    PyErr_SetString(PyExc_RuntimeError, "torch made a result without memory, as it does under a "
                                        "FakeTensorMode; call operators outside of it");
    return nullptr;
  }
  return result.release();
}

/// Has Python launch it, which prepares its kernel: 0, or -1 with an exception.
int launchByOwner(Plan &plan, const uint64_t *addresses, int count, int64_t rows, uint64_t stream,
                  PyObject *isFinal) {
  Ref list(PyList_New(0));
  for (int i = 0; list && i < count; ++i) {
    Ref address(PyLong_FromUnsignedLongLong(addresses[i]));
    if (!address || PyList_Append(list.get(), address.get()))
      return -1;
  }
  if (!list)
    return -1;
  Ref done(PyObject_CallFunction(plan.owner, "OOLKO", reinterpret_cast<PyObject *>(&plan),
                                 list.get(), static_cast<long long>(rows),
                                 static_cast<unsigned long long>(stream), isFinal));
  return done ? 0 : -1;
}

/// Notes that a kernel is used now: 0, or -1 with an exception.
int noteUse(const Plan &plan, const Prepared &prepared) {
  Ref now(PyIter_Next(plan.clock));
  return now ? PyObject_SetAttr(prepared.loaded, names.used, now.get()) : -1;
}

/// Launches a kernel that is in device memory as long as `kernel` lives: 0, or -1 with an
/// exception.
int launch(const Prepared &prepared, PyObject *kernel, uint64_t *addresses, int64_t rows,
           uint64_t stream) {
  int64_t values[kMostValues];
  std::copy(prepared.values.begin(), prepared.values.end(), values);
  for (const RowValue &each : prepared.rows)
    values[each.position] = each.constant + each.factor * rows;
  int32_t status;
  // It waits while the stream's queue is full.
  Py_BEGIN_ALLOW_THREADS;
  status = prepared.launch(prepared.kernel, reinterpret_cast<void *const *>(addresses), values,
                           nullptr, reinterpret_cast<void *>(stream));
  Py_END_ALLOW_THREADS;
  if (status == 0)
    return 0;
  Ref code(PyLong_FromLong(status));
  Ref checked(code ? PyObject_CallMethodObjArgs(kernel, names.check, code.get(), nullptr)
                   : nullptr);
  if (checked)
    PyErr_SetString(PyExc_RuntimeError, "a launch failed without a reason");
  return -1;
}

} // namespace

Prepared *Plan::at(int64_t rows) const {
  auto after = std::upper_bound(starts.begin(), starts.end(), rows);
  return after == starts.begin() ? nullptr : prepared[after - starts.begin() - 1];
}

PyObject *shapejit::calls::runCall(Plan &plan, const GemmCall &call, PyObject *const *arguments,
                                   PyObject *streamOf, PyObject *sharedMemoryError) {
  uint64_t addresses[Key::kTensors];
  int count = 0;
  for (int i = 0; i < GemmCall::kOut; ++i)
    if (call.given[i])
      addresses[count++] = addressOf(call.tensors[i]);
  Ref result;
  if (!call.given[GemmCall::kOut]) {
    result.reset(makeResult(plan, call, addresses[count]));
  } else if (call.sharesMemory()) {
    Ref error(PyObject_CallNoArgs(sharedMemoryError));
    if (error)
      PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
  } else {
    addresses[count] = addressOf(call.tensors[GemmCall::kOut]);
    result.reset(Ref::more(arguments[GemmCall::kOut]));
  }
  if (!result)
    return nullptr;
  if (plan.empty)
    return result.release();
  ++count;
  Ref handle(PyObject_CallFunctionObjArgs(streamOf, plan.device, nullptr));
  uint64_t stream = handle ? PyLong_AsUnsignedLongLong(handle.get()) : 0;
  if (!handle || PyErr_Occurred())
    return nullptr;
  int64_t rows = plan.anyRows ? call.rows : plan.rows;
  auto *prepared = plan.at(rows);
  Ref held(Ref::more(reinterpret_cast<PyObject *>(prepared)));
  Ref kernel(prepared ? PyObject_GetAttr(prepared->loaded, names.kernel) : Ref::more(Py_None));
  int status;
  if (!kernel || (kernel.get() != Py_None && noteUse(plan, *prepared)))
    status = -1;
  else if (kernel.get() == Py_None) // not built or loaded yet, or evicted
    status = launchByOwner(plan, addresses, count, rows, stream, arguments[GemmCall::kFinal]);
  else
    status = launch(*prepared, kernel.get(), addresses, rows, stream);
  return status ? nullptr : result.release();
}

int shapejit::calls::addPlanTypes(PyObject *module) {
  static PyType_Slot preparedSlots[] = {
      slot(Py_tp_new, newPrepared), slot(Py_tp_dealloc, endPrepared), {0, nullptr}};
  static PyType_Spec preparedSpec = {"shapejit._calls.Prepared", sizeof(Prepared), 0,
                                     Py_TPFLAGS_DEFAULT, preparedSlots};
  static PyMethodDef methods[] = {{"choose", choose, METH_VARARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot planSlots[] = {slot(Py_tp_new, newPlan),
                                    slot(Py_tp_dealloc, endPlan),
                                    {Py_tp_methods, methods},
                                    {0, nullptr}};
  static PyType_Spec planSpec = {"shapejit._calls.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT,
                                 planSlots};
  return addType(module, preparedSpec, preparedType) || addType(module, planSpec, planType) ? -1
                                                                                            : 0;
}
