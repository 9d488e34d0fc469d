// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table of an operator's plans. It is looked up by what a call's tensors are, which is read
// without going through Python.

#include "Calls.h"
#include "Plan.h"
#include "Types.h"

using namespace shapejit::calls;

namespace {

struct Calls {
  PyObject head;               ///< as every object of Python's begins
  PyObject *streamOf;          ///< handle of a device's current stream
  PyObject *usesTf32;          ///< whether products of float32 may be rounded, by precision
  PyObject *sharedMemoryError; ///< makes the exception for a result that lies in an operand
  size_t most, count;
  std::vector<Plan *> places; ///< a power of two of them
  Plan *oldest, *youngest;

  Plan *&place(uint64_t hash) { return places[hash & (places.size() - 1)]; }
  Plan *find(const Key &key) {
    uint64_t hash = key.hash();
    Plan *plan = place(hash);
    while (plan && !(plan->hash == hash && key == plan->key))
      plan = plan->next;
    return plan;
  }
  void add(Plan &plan, const GemmCall &call);
  void dropOldest();
};

void Calls::add(Plan &plan, const GemmCall &call) {
  if (count >= most)
    dropOldest(); // it costs little to make again
  plan.key = call.key.copy();
  plan.hash = call.key.hash();
  plan.anyRows = call.anyRows;
  plan.next = place(plan.hash);
  place(plan.hash) = &plan;
  (oldest ? youngest->younger : oldest) = &plan;
  youngest = &plan;
  ++count;
  Py_INCREF(reinterpret_cast<PyObject *>(&plan));
}

void Calls::dropOldest() {
  Plan *plan = oldest;
  oldest = plan->younger;
  plan->younger = nullptr;
  Plan **link = &place(plan->hash);
  while (*link != plan)
    link = &(*link)->next;
  *link = plan->next;
  plan->next = nullptr;
  --count;
  Py_DECREF(reinterpret_cast<PyObject *>(plan));
}

Calls &callsOf(PyObject *object) { return *reinterpret_cast<Calls *>(object); }

/// Calls(most, stream_of, uses_tf32, shared_memory_error)
PyObject *newCalls(PyTypeObject *type, PyObject *arguments, PyObject *) {
  PyObject *streamOf, *usesTf32, *sharedMemoryError;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(arguments, "nOOO", &most, &streamOf, &usesTf32, &sharedMemoryError))
    return nullptr;
  if (most < 1) {
    PyErr_SetString(PyExc_ValueError, "a table has room for one plan at least");
    return nullptr;
  }
  auto *made = makeRecord<Calls>(type);
  if (!made)
    return nullptr;
  made->streamOf = Ref::more(streamOf);
  made->usesTf32 = Ref::more(usesTf32);
  made->sharedMemoryError = Ref::more(sharedMemoryError);
  made->most = static_cast<size_t>(most);
  size_t places = 16;
  while (places < made->most)
    places *= 2;
  made->places.resize(places);
  return reinterpret_cast<PyObject *>(made);
}

void endCalls(PyObject *object) {
  Calls &calls = callsOf(object);
  while (calls.count)
    calls.dropOldest();
  for (PyObject *held : {calls.streamOf, calls.usesTf32, calls.sharedMemoryError})
    Py_XDECREF(held);
  endRecord(&calls);
}

/// Reads arguments: whether a call can go on; else what the caller returns is set.
bool readCall(Calls &calls, GemmCall &call, PyObject *const *arguments, Py_ssize_t count,
              PyObject *&result) {
  result = nullptr;
  if (count != GemmCall::kArguments) {
    PyErr_Format(PyExc_TypeError, "a call has %d arguments, not %zd",
                 static_cast<int>(GemmCall::kArguments), count);
    return false;
  }
  switch (call.read(arguments, calls.usesTf32)) {
  case Reading::Done:
    return true;
  case Reading::Unusual:
    result = Ref::more(Py_None);
    return false;
  case Reading::Failed:
    return false;
  }
  return false;
}

/// calls.run(..): the result; None if there is no plan for the call, or Python has to look at it
PyObject *runKnown(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  Calls &calls = callsOf(self);
  GemmCall call;
  PyObject *result;
  if (!readCall(calls, call, arguments, count, result))
    return result;
  Plan *plan = calls.find(call.key);
  if (!plan)
    Py_RETURN_NONE;
  Ref held(Ref::more(reinterpret_cast<PyObject *>(plan))); // others may drop it meanwhile
  return runCall(*plan, call, arguments, calls.streamOf, calls.sharedMemoryError);
}

/// calls.add(plan, ..): has a plan serve calls like this one
PyObject *add(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  Calls &calls = callsOf(self);
  if (count < 1 || Py_TYPE(arguments[0]) != planType) {
    PyErr_SetString(PyExc_TypeError, "the first argument is a plan");
    return nullptr;
  }
  GemmCall call;
  PyObject *result;
  if (!readCall(calls, call, arguments + 1, count - 1, result)) {
    if (result) {
      Py_DECREF(result);
      PyErr_SetString(PyExc_TypeError, "there is a tensor among them that cannot be read");
    }
    return nullptr;
  }
  auto &plan = *reinterpret_cast<Plan *>(arguments[0]);
  if (Plan *known = calls.find(call.key)) {
    // Of another thread that came first, or of a time when fewer kernels were there.
    known->starts.swap(plan.starts);
    known->prepared.swap(plan.prepared);
  } else if (plan.key.empty()) {
    calls.add(plan, call);
  } else {
    PyErr_SetString(PyExc_ValueError, "the plan serves other calls already");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject *clear(PyObject *self, PyObject *) {
  Calls &calls = callsOf(self);
  while (calls.count)
    calls.dropOldest();
  Py_RETURN_NONE;
}

Py_ssize_t length(PyObject *self) { return static_cast<Py_ssize_t>(callsOf(self).count); }

PyTypeObject *callsType;

} // namespace

int shapejit::calls::addCallsType(PyObject *module) {
  static PyMethodDef methods[] = {{"run", method(runKnown), METH_FASTCALL, nullptr},
                                  {"add", method(add), METH_FASTCALL, nullptr},
                                  {"clear", clear, METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {slot(Py_tp_new, newCalls),
                                slot(Py_tp_dealloc, endCalls),
                                slot(Py_sq_length, length),
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"shapejit._calls.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, slots};
  return addType(module, spec, callsType);
}
