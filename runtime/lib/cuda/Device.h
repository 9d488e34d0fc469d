// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Devices, and how calls come to run in their contexts.

#ifndef SHAPEJIT_RT_CUDA_DEVICE_H
#define SHAPEJIT_RT_CUDA_DEVICE_H

#include "Driver.h"
#include "Workspace.h"

#include <atomic>
#include <pthread.h>

namespace shapejit::rt::cuda {

/// A device that kernels run on. It is opened with the first module loaded there, which retains its
/// primary context, and stays open.
struct Device {
  static constexpr int32_t kMaxDevices = 64;
  /// Bytes at `nothing`: more than the largest element of a tensor map.
  static constexpr size_t kNothingBytes = 256;

  /// The device of that number, open.
  static Status open(int32_t number, Device *&device);

  /// The device of that number if it is open, else null.
  static Device *ifOpen(int32_t number);

  int32_t number = 0;
  int32_t multiprocessors = 0;
  int32_t sharedBytesPerBlock = 0;
  abi::Context context = nullptr;
  /// For work of the library itself that has to end before a call returns.
  abi::Stream stream = nullptr;
  /// Zeros that stand for an empty tensor, see TensorMapPlan.
  abi::Address nothing = 0;
  WorkspaceTable workspaces;

private:
  Status prepare(abi::DeviceId id);

  std::atomic<bool> isOpen{false};
};

/// Makes a device's context current while in scope, if it is not.
class UseDevice {
public:
  explicit UseDevice(const Device &device);
  ~UseDevice();
  UseDevice(const UseDevice &) = delete;
  UseDevice &operator=(const UseDevice &) = delete;

  /// Whether the context is current.
  Status status = ShapejitRtCudaOk;

private:
  bool pushed = false;
};

/// Lets the thread make calls that are forbidden while a stream is captured in some thread, such as
/// allocations, while in scope. They are not captured, and do not depend on what is.
class AllowDuringCapture {
public:
  AllowDuringCapture() { driver.cuThreadExchangeStreamCaptureMode(&mode); }
  ~AllowDuringCapture() { driver.cuThreadExchangeStreamCaptureMode(&mode); }
  AllowDuringCapture(const AllowDuringCapture &) = delete;
  AllowDuringCapture &operator=(const AllowDuringCapture &) = delete;

private:
  abi::CaptureMode mode = abi::kCaptureRelaxed;
};

/// Describes a device; it need not be open.
Status describeDevice(int32_t number, ShapejitRtCudaDeviceInfo &info);

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_DEVICE_H
