// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The part of the CUDA driver's binary interface that the library uses, so that it builds without
// CUDA's headers. `test/cuda_abi.cpp` compares it with them where they are installed.

#ifndef SHAPEJIT_RT_CUDA_ABI_H
#define SHAPEJIT_RT_CUDA_ABI_H

#include <cstddef>
#include <cstdint>

namespace shapejit::rt::cuda::abi {

using Result = int;
using DeviceId = int;
using Address = unsigned long long;

using Context = struct ContextHandle *;
using Module = struct ModuleHandle *;
using Function = struct FunctionHandle *;
using Stream = struct StreamHandle *;
using Graph = struct GraphHandle *;
using GraphNode = struct GraphNodeHandle *;
using GraphExec = struct GraphExecHandle *;
using Event = struct EventHandle *;
using UserObject = struct UserObjectHandle *;

enum : Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoBinaryForGpu = 209,
  kUnsupportedPtxVersion = 222,
  kInvalidHandle = 400,
  kNotFound = 500,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kStreamCaptureImplicit = 906,
};

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxSharedMemoryPerBlockOptin = 97,
};

enum FunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kSharedSizeBytes = 1,
  kLocalSizeBytes = 3,
  kNumRegs = 4,
  kMaxDynamicSharedSizeBytes = 8,
  kPreferredSharedMemoryCarveout = 9,
  kNonPortableClusterSizeAllowed = 14,
};

/// For kPreferredSharedMemoryCarveout: per cent.
enum : int { kMostSharedMemory = 100 };

enum JitOption : int { kErrorLogBuffer = 5, kErrorLogBufferSizeBytes = 6 };

enum StreamFlags : unsigned { kStreamNonBlocking = 1 };
enum EventFlags : unsigned { kEventDisableTiming = 2 };

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

enum : unsigned { kUserObjectNoDestructorSync = 1, kGraphUserObjectMove = 1 };

enum LaunchAttributeId : int {
  kClusterDimension = 4,
  kProgrammaticStreamSerialization = 6,
};

union LaunchAttributeValue {
  char pad[64];
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  // The driver's union has members of 8 bytes.
  alignas(8) LaunchAttributeValue value;
};

struct LaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  Stream hStream;
  LaunchAttribute *attrs;
  unsigned numAttrs;
};

/// What an edge of a graph waits for: the end of a kernel, or that all its CTAs let the next one
/// start or have ended.
enum : unsigned char { kPortDefault = 0, kPortProgrammatic = 1 };
enum : unsigned char { kDependencyDefault = 0, kDependencyProgrammatic = 1 };

struct GraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

/// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParams {
  Function func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void **kernelParams;
  void **extra;
  void *kern;
  Context ctx;
};

struct TensorMap {
  alignas(64) uint64_t opaque[16];
};

enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32B, kSwizzle64B, kSwizzle128B };
enum TensorMapPromotion : int { kPromotionNone = 0, kPromotion64B, kPromotion128B, kPromotion256B };

enum : uint64_t { kGetProcAddressLegacyStream = 1 };

using GetProcAddress = Result (*)(const char *symbol, void **function, int version, uint64_t flags,
                                  int *status);

} // namespace shapejit::rt::cuda::abi

#endif // SHAPEJIT_RT_CUDA_ABI_H
