// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Error.h"

#include "Driver.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

using namespace shapejit::rt::cuda;

namespace {

struct Text {
  char characters[2048];
  size_t length;

  void add(const char *format, va_list arguments) {
    size_t room = sizeof(characters) - length;
    int wanted = vsnprintf(characters + length, room, format, arguments);
    if (wanted > 0)
      length += std::min(static_cast<size_t>(wanted), room - 1);
  }
};

__thread Text text;

/// What a user can do about a result whose name does not say it; null if nothing is known.
const char *adviceFor(abi::Result result) {
  switch (result) {
  case abi::kNotInitialized:
    return "The driver cannot be used in a child of fork(): start processes with the method "
           "\"spawn\"";
  case abi::kNoBinaryForGpu:
    return "The code was made for another compute capability than that of the device";
  case abi::kUnsupportedPtxVersion:
    return "The driver is older than the assembler's version: update it";
  case abi::kInvalidHandle:
    return "The stream must belong to the primary context of the kernel's device";
  case abi::kStreamCaptureImplicit:
    return "The default stream cannot be used while another stream is captured: use a stream of "
           "your own";
  case abi::kIllegalAddress:
  case abi::kLaunchFailed:
    return "Some kernel of this process failed before; its device cannot be used any more until "
           "the process ends";
  default:
    return nullptr;
  }
}

} // namespace

Status shapejit::rt::cuda::fail(Status status, const char *format, ...) {
  text.length = 0;
  va_list arguments;
  va_start(arguments, format);
  text.add(format, arguments);
  va_end(arguments);
  return status;
}

void shapejit::rt::cuda::addToError(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  text.add(format, arguments);
  va_end(arguments);
}

Status shapejit::rt::cuda::failDriver(const char *function, abi::Result result) {
  const char *name = nullptr, *meaning = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &meaning);
  fail(ShapejitRtCudaDriverFailed, "%s failed with %s (%d): %s", function,
       name ? name : "an unknown error", result, meaning ? meaning : "no description");
  if (const char *advice = adviceFor(result))
    addToError(". %s", advice);
  return ShapejitRtCudaDriverFailed;
}

const char *shapejit::rt::cuda::errorText() { return text.characters; }
