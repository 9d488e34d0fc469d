// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The functions of libcuda that the library calls.

#ifndef SHAPEJIT_RT_CUDA_DRIVER_H
#define SHAPEJIT_RT_CUDA_DRIVER_H

#include "Abi.h"
#include "Error.h"

namespace shapejit::rt::cuda {

// Each with the CUDA version of the variant that is called: cuGetProcAddress gives that variant,
// however new the driver is.
#define SHAPEJIT_CUDA_REQUIRED(F)                                                                  \
  F(cuInit, 2000, (unsigned))                                                                      \
  F(cuGetErrorName, 6000, (abi::Result, const char **))                                            \
  F(cuGetErrorString, 6000, (abi::Result, const char **))                                          \
  F(cuDriverGetVersion, 2020, (int *))                                                             \
  F(cuDeviceGetCount, 2000, (int *))                                                               \
  F(cuDeviceGet, 2000, (abi::DeviceId *, int))                                                     \
  F(cuDeviceGetName, 2000, (char *, int, abi::DeviceId))                                           \
  F(cuDeviceGetAttribute, 2000, (int *, abi::DeviceAttribute, abi::DeviceId))                      \
  F(cuDeviceTotalMem, 3020, (size_t *, abi::DeviceId))                                             \
  F(cuDevicePrimaryCtxRetain, 7000, (abi::Context *, abi::DeviceId))                               \
  F(cuCtxGetCurrent, 4000, (abi::Context *))                                                       \
  F(cuCtxPushCurrent, 4000, (abi::Context))                                                        \
  F(cuCtxPopCurrent, 4000, (abi::Context *))                                                       \
  F(cuModuleLoadDataEx, 2010, (abi::Module *, const void *, unsigned, abi::JitOption *, void **))  \
  F(cuModuleUnload, 2000, (abi::Module))                                                           \
  F(cuModuleGetFunction, 2000, (abi::Function *, abi::Module, const char *))                       \
  F(cuFuncGetAttribute, 2020, (int *, abi::FunctionAttribute, abi::Function))                      \
  F(cuFuncSetAttribute, 9000, (abi::Function, abi::FunctionAttribute, int))                        \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int *, abi::Function, int, size_t))        \
  F(cuOccupancyMaxActiveClusters, 11070, (int *, abi::Function, const abi::LaunchConfig *))        \
  F(cuLaunchKernelEx, 11060, (const abi::LaunchConfig *, abi::Function, void **, void **))         \
  F(cuTensorMapEncodeTiled, 12000,                                                                 \
    (abi::TensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *,                  \
     const uint32_t *, const uint32_t *, int, abi::TensorMapSwizzle, abi::TensorMapPromotion,      \
     int))                                                                                         \
  F(cuTensorMapEncodeIm2col, 12000,                                                                \
    (abi::TensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *,     \
     const int *, uint32_t, uint32_t, const uint32_t *, int, abi::TensorMapSwizzle,                \
     abi::TensorMapPromotion, int))                                                                \
  F(cuMemAlloc, 3020, (abi::Address *, size_t))                                                    \
  F(cuMemFree, 3020, (abi::Address))                                                               \
  F(cuMemsetD8Async, 3020, (abi::Address, unsigned char, size_t, abi::Stream))                     \
  F(cuMemcpyHtoDAsync, 3020, (abi::Address, const void *, size_t, abi::Stream))                    \
  F(cuStreamCreate, 2000, (abi::Stream *, unsigned))                                               \
  F(cuStreamSynchronize, 2000, (abi::Stream))                                                      \
  F(cuStreamWaitEvent, 3020, (abi::Stream, abi::Event, unsigned))                                  \
  F(cuEventCreate, 2000, (abi::Event *, unsigned))                                                 \
  F(cuEventRecord, 2000, (abi::Event, abi::Stream))                                                \
  F(cuEventDestroy, 4000, (abi::Event))                                                            \
  F(cuStreamGetId, 12000, (abi::Stream, unsigned long long *))                                     \
  F(cuStreamGetCaptureInfo, 11030,                                                                 \
    (abi::Stream, abi::CaptureStatus *, uint64_t *, abi::Graph *, const abi::GraphNode **,         \
     size_t *))                                                                                    \
  F(cuThreadExchangeStreamCaptureMode, 10010, (abi::CaptureMode *))                                \
  F(cuUserObjectCreate, 11030, (abi::UserObject *, void *, void (*)(void *), unsigned, unsigned))  \
  F(cuUserObjectRelease, 11030, (abi::UserObject, unsigned))                                       \
  F(cuGraphRetainUserObject, 11030, (abi::Graph, abi::UserObject, unsigned, unsigned))             \
  F(cuGraphCreate, 10000, (abi::Graph *, unsigned))                                                \
  F(cuGraphAddKernelNode, 12000,                                                                   \
    (abi::GraphNode *, abi::Graph, const abi::GraphNode *, size_t, const abi::KernelNodeParams *)) \
  F(cuGraphKernelNodeSetAttribute, 11000,                                                          \
    (abi::GraphNode, abi::LaunchAttributeId, const abi::LaunchAttributeValue *))                   \
  F(cuGraphInstantiateWithFlags, 11040, (abi::GraphExec *, abi::Graph, unsigned long long))        \
  F(cuGraphUpload, 11010, (abi::GraphExec, abi::Stream))                                           \
  F(cuGraphLaunch, 10000, (abi::GraphExec, abi::Stream))                                           \
  F(cuGraphExecKernelNodeSetParams, 12000,                                                         \
    (abi::GraphExec, abi::GraphNode, const abi::KernelNodeParams *))                               \
  F(cuGraphExecDestroy, 10000, (abi::GraphExec))                                                   \
  F(cuGraphDestroy, 10000, (abi::Graph))

// Null in drivers older than their version.
#define SHAPEJIT_CUDA_OPTIONAL(F)                                                                  \
  F(cuFuncLoad, 12040, (abi::Function))                                                            \
  F(cuFuncGetParamInfo, 12040, (abi::Function, size_t, size_t *, size_t *))                        \
  F(cuGraphAddDependencies, 12030,                                                                 \
    (abi::Graph, const abi::GraphNode *, const abi::GraphNode *, const abi::GraphEdgeData *,       \
     size_t))

struct Driver {
#define SHAPEJIT_CUDA_POINTER(name, version, parameters) abi::Result(*name) parameters;
  SHAPEJIT_CUDA_REQUIRED(SHAPEJIT_CUDA_POINTER)
  SHAPEJIT_CUDA_OPTIONAL(SHAPEJIT_CUDA_POINTER)
#undef SHAPEJIT_CUDA_POINTER
};

/// The oldest driver, as 1000 * major + 10 * minor: it has tensor maps, clusters and stream ids.
constexpr int kLeastDriver = 12000;

/// Filled once it is open, and not changed afterwards.
extern Driver driver;

/// Opens the driver, if it is not open.
Status openDriver(const char *path);

/// Fails unless the driver is open.
Status requireDriver();

/// Calls a function of the driver; its failure is one of the function that this stands in.
#define SHAPEJIT_CUDA_TRY(name, ...)                                                               \
  do {                                                                                             \
    if (abi::Result result_ = driver.name(__VA_ARGS__))                                            \
      return failDriver(#name, result_);                                                           \
  } while (false)

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_DRIVER_H
