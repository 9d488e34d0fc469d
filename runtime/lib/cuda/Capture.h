// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Streams that are being captured into a CUDA graph.
//
// A graph holds bare handles of functions and addresses of memory, and lives as long as its owner
// likes. So each capture gives the graph user objects that hold what its kernels need. The driver
// ends them with the graph and the last executable made from it, once their work is done. It does
// so in a thread of its own in which no function of the driver may be called: what is to be done
// then is left to a later call of the library.

#ifndef SHAPEJIT_RT_CUDA_CAPTURE_H
#define SHAPEJIT_RT_CUDA_CAPTURE_H

#include "Driver.h"

namespace shapejit::rt::cuda {

/// What a stream is being captured into.
struct Capture {
  /// Asks the driver; the stream's context is current.
  static Status of(abi::Stream stream, Capture &capture);

  /// Has the graph call `release(object)` when it is gone. If that cannot be had, calls it at once
  /// and fails.
  Status hold(void *object, void (*release)(void *)) const;

  uint64_t id = 0; ///< unique for the life of the process; 0: the stream is not captured
  abi::Graph graph = nullptr;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_CAPTURE_H
