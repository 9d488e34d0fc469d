// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Capture.h"

using namespace shapejit::rt::cuda;

Status Capture::of(abi::Stream stream, Capture &capture) {
  abi::CaptureStatus status = abi::kCaptureNone;
  uint64_t id = 0;
  abi::Graph graph = nullptr;
  SHAPEJIT_CUDA_TRY(cuStreamGetCaptureInfo, stream, &status, &id, &graph, nullptr, nullptr);
  // A capture that failed before makes the launch fail, with the driver's own words.
  if (status == abi::kCaptureActive)
    capture = {id, graph};
  return ShapejitRtCudaOk;
}

Status Capture::hold(void *object, void (*release)(void *)) const {
  abi::UserObject holder;
  if (abi::Result result = driver.cuUserObjectCreate(&holder, object, release, 1,
                                                     abi::kUserObjectNoDestructorSync)) {
    release(object);
    return failDriver("cuUserObjectCreate", result);
  }
  abi::Result result = driver.cuGraphRetainUserObject(graph, holder, 1, abi::kGraphUserObjectMove);
  if (result == abi::kSuccess)
    return ShapejitRtCudaOk;
  // Gives the only reference up, so `release` is called.
  driver.cuUserObjectRelease(holder, 1);
  return failDriver("cuGraphRetainUserObject", result);
}
