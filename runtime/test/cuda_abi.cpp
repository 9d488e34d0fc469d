// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Compares the library's declarations of the driver's interface with CUDA's headers. It is compiled
// where they are installed, and never run.

#include "../lib/cuda/Driver.h"

#include "shapejit_rt/cuda.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

namespace abi = shapejit::rt::cuda::abi;

// Values.

#define SAME(ours, theirs)                                                                         \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs " differs")

SAME(abi::kSuccess, CUDA_SUCCESS);
SAME(abi::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(abi::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(abi::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(abi::kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(abi::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(abi::kNotFound, CUDA_ERROR_NOT_FOUND);
SAME(abi::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(abi::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME(abi::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);

SAME(abi::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(abi::kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(abi::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(abi::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(abi::kMaxSharedMemoryPerMultiprocessor,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(abi::kMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

SAME(abi::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(abi::kSharedSizeBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(abi::kLocalSizeBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(abi::kNumRegs, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(abi::kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(abi::kPreferredSharedMemoryCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(abi::kMostSharedMemory, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
SAME(abi::kNonPortableClusterSizeAllowed, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);

SAME(abi::kErrorLogBuffer, CU_JIT_ERROR_LOG_BUFFER);
SAME(abi::kErrorLogBufferSizeBytes, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
SAME(abi::kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(abi::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(abi::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(abi::kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(abi::kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(abi::kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(abi::kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(abi::kUserObjectNoDestructorSync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
SAME(abi::kGraphUserObjectMove, CU_GRAPH_USER_OBJECT_MOVE);
SAME(abi::kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(abi::kProgrammaticStreamSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(abi::kGetProcAddressLegacyStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);

SAME(abi::kSwizzleNone, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME(abi::kSwizzle32B, CU_TENSOR_MAP_SWIZZLE_32B);
SAME(abi::kSwizzle64B, CU_TENSOR_MAP_SWIZZLE_64B);
SAME(abi::kSwizzle128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(abi::kPromotionNone, CU_TENSOR_MAP_L2_PROMOTION_NONE);
SAME(abi::kPromotion64B, CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
SAME(abi::kPromotion128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME(abi::kPromotion256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

SAME(ShapejitRtCudaU8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME(ShapejitRtCudaU16, CU_TENSOR_MAP_DATA_TYPE_UINT16);
SAME(ShapejitRtCudaU32, CU_TENSOR_MAP_DATA_TYPE_UINT32);
SAME(ShapejitRtCudaI32, CU_TENSOR_MAP_DATA_TYPE_INT32);
SAME(ShapejitRtCudaU64, CU_TENSOR_MAP_DATA_TYPE_UINT64);
SAME(ShapejitRtCudaI64, CU_TENSOR_MAP_DATA_TYPE_INT64);
SAME(ShapejitRtCudaF16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(ShapejitRtCudaF32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME(ShapejitRtCudaF64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
SAME(ShapejitRtCudaBF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(ShapejitRtCudaTF32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32);

// Structures.

#define SAME_FIELD(ours, our, theirs, their)                                                       \
  static_assert(offsetof(ours, our) == offsetof(theirs, their) &&                                  \
                    sizeof(ours::our) == sizeof(theirs::their),                                    \
                #theirs "::" #their " differs")
#define SAME_SIZE(ours, theirs)                                                                    \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs),                \
                #theirs " differs")

// CUDA 13's header aligns it to 128 bytes, while the driver still asks for 64.
static_assert(sizeof(abi::TensorMap) == sizeof(CUtensorMap), "CUtensorMap differs");
SAME_SIZE(abi::LaunchAttribute, CUlaunchAttribute);
SAME_FIELD(abi::LaunchAttribute, id, CUlaunchAttribute, id);
SAME_FIELD(abi::LaunchAttribute, value, CUlaunchAttribute, value);
SAME_FIELD(abi::LaunchAttributeValue, clusterDim, CUlaunchAttributeValue, clusterDim);
SAME_FIELD(abi::LaunchAttributeValue, programmaticStreamSerializationAllowed,
           CUlaunchAttributeValue, programmaticStreamSerializationAllowed);
SAME_SIZE(abi::LaunchConfig, CUlaunchConfig);
SAME_FIELD(abi::LaunchConfig, gridDimX, CUlaunchConfig, gridDimX);
SAME_FIELD(abi::LaunchConfig, gridDimZ, CUlaunchConfig, gridDimZ);
SAME_FIELD(abi::LaunchConfig, blockDimX, CUlaunchConfig, blockDimX);
SAME_FIELD(abi::LaunchConfig, blockDimZ, CUlaunchConfig, blockDimZ);
SAME_FIELD(abi::LaunchConfig, sharedMemBytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(abi::LaunchConfig, hStream, CUlaunchConfig, hStream);
SAME_FIELD(abi::LaunchConfig, attrs, CUlaunchConfig, attrs);
SAME_FIELD(abi::LaunchConfig, numAttrs, CUlaunchConfig, numAttrs);

SAME(abi::kPortProgrammatic, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
SAME(abi::kPortDefault, CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
SAME(abi::kDependencyProgrammatic, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
SAME(abi::kDependencyDefault, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
SAME_SIZE(abi::GraphEdgeData, CUgraphEdgeData);
SAME_FIELD(abi::GraphEdgeData, from_port, CUgraphEdgeData, from_port);
SAME_FIELD(abi::GraphEdgeData, to_port, CUgraphEdgeData, to_port);
SAME_FIELD(abi::GraphEdgeData, type, CUgraphEdgeData, type);
SAME_SIZE(abi::KernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_FIELD(abi::KernelNodeParams, func, CUDA_KERNEL_NODE_PARAMS_v2, func);
SAME_FIELD(abi::KernelNodeParams, gridDimX, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
SAME_FIELD(abi::KernelNodeParams, blockDimX, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
SAME_FIELD(abi::KernelNodeParams, sharedMemBytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
SAME_FIELD(abi::KernelNodeParams, kernelParams, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME_FIELD(abi::KernelNodeParams, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra);
SAME_FIELD(abi::KernelNodeParams, kern, CUDA_KERNEL_NODE_PARAMS_v2, kern);
SAME_FIELD(abi::KernelNodeParams, ctx, CUDA_KERNEL_NODE_PARAMS_v2, ctx);

// Functions: as many parameters, each of the same size and kind. A missing variant does not
// compile.

template <typename Ours, typename Theirs> struct Compatible {
  static constexpr bool value = sizeof(Ours) == sizeof(Theirs) &&
                                std::is_pointer<Ours>::value == std::is_pointer<Theirs>::value;
};
template <typename Ours, typename Theirs> struct SameFunction : std::false_type {};
template <typename R, typename... Ours, typename S, typename... Theirs>
struct SameFunction<R (*)(Ours...), S (*)(Theirs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs) || sizeof(R) != sizeof(S))
      return false;
    else
      return (Compatible<Ours, Theirs>::value && ...);
  }();
};

#define SAME_FUNCTION(name, version, parameters)                                                   \
  static_assert(SameFunction<abi::Result(*) parameters, PFN_##name##_v##version>::value,           \
                #name " differs");
SHAPEJIT_CUDA_REQUIRED(SAME_FUNCTION)
SHAPEJIT_CUDA_OPTIONAL(SAME_FUNCTION)
static_assert(SameFunction<abi::GetProcAddress, PFN_cuGetProcAddress_v12000>::value,
              "cuGetProcAddress differs");

int main() {}
