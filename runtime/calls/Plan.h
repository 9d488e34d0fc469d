// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How calls of one key are launched. All fields are read and written with the interpreter's lock.

#ifndef SHAPEJIT_CALLS_PLAN_H
#define SHAPEJIT_CALLS_PLAN_H

#include "Key.h"

namespace shapejit::calls {

/// ``shapejitRtCudaLaunch``
using LaunchFunction = int32_t (*)(const void *kernel, void *const *operands, const int64_t *values,
                                   void *workspace, void *stream);

/// ``values[position] = constant + factor * rows``
struct RowValue {
  size_t position;
  int64_t constant, factor;
};

/// A kernel with the values of its interface.
struct Prepared {
  PyObject head;    ///< as every object of Python's begins
  PyObject *loaded; ///< has the kernel, until that is evicted, and when it was used
  void *kernel;
  LaunchFunction launch;
  std::vector<int64_t> values; ///< right but for those in `rows`
  std::vector<RowValue> rows;
};

/// Most values of a kernel: as many as the runtime takes.
constexpr size_t kMostValues = 256;

struct Plan {
  PyObject head;   ///< as every object of Python's begins
  PyObject *owner; ///< called where no kernel is prepared: (plan, addresses, rows, stream, final)
  PyObject *clock; ///< an iterator: what the next use is noted as
  PyObject *allocate; ///< makes the result: (size, strides, dtype)
  PyObject *size, *strides, *dtype;
  PyObject *device;            ///< its number
  int64_t rows;                ///< of a call, unless they differ between calls
  bool anyRows;                ///< whether they do
  bool empty;                  ///< there is nothing to launch
  std::vector<int64_t> starts; ///< the first rows that each of these serves; null: no kernel yet
  std::vector<Prepared *> prepared;
  // In a table of plans.
  std::vector<uint64_t> key;
  uint64_t hash;
  Plan *next;    ///< with the same place in it
  Plan *younger; ///< added after this one

  /// What serves a call with so many rows; borrowed, may be null.
  Prepared *at(int64_t rows) const;
};

/// Make the types, and add them to the module; 0, or -1 with an exception.
int addPlanTypes(PyObject *module);
extern PyTypeObject *preparedType, *planType;

/// Runs a call: its result, or null with an exception.
PyObject *runCall(Plan &plan, const GemmCall &call, PyObject *const *arguments, PyObject *streamOf,
                  PyObject *sharedMemoryError);

} // namespace shapejit::calls

#endif // SHAPEJIT_CALLS_PLAN_H
