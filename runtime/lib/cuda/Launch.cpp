// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The path of a launch. It allocates nothing and waits for nothing, so that it may be captured,
// except when a stream's workspace has to be made, which stays out of the capture.

#include "Kernel.h"

using namespace shapejit::rt::cuda;

using Kernel = ShapejitRtCudaKernel;

Status Kernel::submit(uint32_t ctas, abi::Stream stream, void **parameters, bool depends) const {
  abi::LaunchAttribute attributes[2];
  abi::LaunchConfig config = {};
  config.attrs = attributes;
  if (cluster > 1) {
    abi::LaunchAttribute &attribute = attributes[config.numAttrs++];
    attribute.id = abi::kClusterDimension;
    attribute.value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (programmatic && !depends) {
    abi::LaunchAttribute &attribute = attributes[config.numAttrs++];
    attribute.id = abi::kProgrammaticStreamSerialization;
    attribute.value.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDimX = ctas;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads);
  config.sharedMemBytes = static_cast<unsigned>(sharedBytes);
  config.hStream = stream;
  SHAPEJIT_CUDA_TRY(cuLaunchKernelEx, &config, function, parameters, nullptr);
  return ShapejitRtCudaOk;
}

Status Kernel::addTo(abi::Graph graph, uint32_t ctas, abi::Address entry,
                     abi::GraphNode &node) const {
  void *parameters[] = {&entry};
  abi::KernelNodeParams params = {};
  params.func = function;
  params.gridDimX = ctas;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = static_cast<unsigned>(threads);
  params.sharedMemBytes = static_cast<unsigned>(sharedBytes);
  params.kernelParams = parameters;
  SHAPEJIT_CUDA_TRY(cuGraphAddKernelNode, &node, graph, nullptr, 0, &params);
  if (cluster > 1) {
    abi::LaunchAttributeValue value = {};
    value.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    SHAPEJIT_CUDA_TRY(cuGraphKernelNodeSetAttribute, node, abi::kClusterDimension, &value);
  }
  return ShapejitRtCudaOk;
}

namespace {

/// What a launch into a stream is captured into; its graph then holds the kernel's code.
Status capturing(const Kernel &kernel, abi::Stream stream, Capture &capture) {
  SHAPEJIT_TRY(Capture::of(stream, capture));
  return capture.id ? kernel.module->holdBy(capture) : ShapejitRtCudaOk;
}

/// Launches a kernel that gets its parameters by value.
Status launch(const Kernel &kernel, uint32_t ctas, void *const *operands, const int64_t *values,
              void *workspace, abi::Stream stream) {
  Device &device = *kernel.module->device;
  UseDevice use(device);
  SHAPEJIT_TRY(use.status);
  Capture capture;
  SHAPEJIT_TRY(capturing(kernel, stream, capture));
  WorkspaceLease lease;
  if (kernel.takesWorkspace && !workspace)
    SHAPEJIT_TRY(lease.take(device, stream, capture, kernel.workspaceNeed(ctas), workspace));
  alignas(abi::TensorMap) unsigned char storage[Kernel::kMaxParameterBytes];
  SHAPEJIT_TRY(kernel.write(operands, values, workspace, storage));
  void *parameters[Kernel::kMaxParameters];
  for (int32_t i = 0; i < kernel.parameterCount; ++i)
    parameters[i] = storage + kernel.parameters[i].offset;
  return kernel.submit(ctas, stream, parameters);
}

Status launchBlock(const Kernel &kernel, const void *entry, abi::Stream stream) {
  UseDevice use(*kernel.module->device);
  SHAPEJIT_TRY(use.status);
  Capture capture;
  SHAPEJIT_TRY(capturing(kernel, stream, capture));
  void *parameters[] = {&entry};
  return kernel.submit(static_cast<uint32_t>(kernel.info.residentCtas), stream, parameters);
}

Status fillBlock(const Kernel &kernel, void *const *operands, const int64_t *values,
                 void *workspace, void *entry) {
  if (kernel.takesWorkspace && !workspace)
    return fail(ShapejitRtCudaBadCall, "it takes a workspace of %lld bytes",
                static_cast<long long>(kernel.info.workspaceBytes));
  if (reinterpret_cast<uintptr_t>(entry) % alignof(abi::TensorMap) != 0)
    return fail(ShapejitRtCudaBadCall, "an entry lies at a multiple of %zu bytes, not at %p",
                alignof(abi::TensorMap), entry);
  UseDevice use(*kernel.module->device);
  SHAPEJIT_TRY(use.status);
  return kernel.write(operands, values, workspace, static_cast<unsigned char *>(entry));
}

Status reserve(const Kernel &kernel, abi::Stream stream) {
  Device &device = *kernel.module->device;
  UseDevice use(device);
  SHAPEJIT_TRY(use.status);
  Capture capture;
  SHAPEJIT_TRY(Capture::of(stream, capture));
  WorkspaceLease lease;
  void *workspace;
  WorkspaceNeed need = kernel.workspaceNeed(static_cast<uint32_t>(kernel.info.residentCtas));
  return lease.take(device, stream, capture, need, workspace);
}

/// Fails unless the kernel has the form that a call is made for.
Status requireForm(const Kernel &kernel, bool block) {
  if (kernel.block == block)
    return ShapejitRtCudaOk;
  return fail(ShapejitRtCudaBadCall,
              block ? "it takes its parameters by value, not from a block"
                    : "it reads its parameters from a block: launch it with the address of its "
                      "entry");
}

} // namespace

int32_t shapejitRtCudaLaunch(const Kernel *kernel, void *const *operands, const int64_t *values,
                             void *workspace, void *stream) {
  uint32_t ctas = 0;
  Status status = requireForm(*kernel, /*block=*/false);
  if (!status)
    status = kernel->grid(values, ctas);
  if (!status && ctas != 0)
    status = launch(*kernel, ctas, operands, values, workspace, static_cast<abi::Stream>(stream));
  return kernel->explain(status, values, ctas);
}

int32_t shapejitRtCudaLaunchBlock(const Kernel *kernel, const void *entry, void *stream) {
  Status status = requireForm(*kernel, /*block=*/true);
  if (!status)
    status = launchBlock(*kernel, entry, static_cast<abi::Stream>(stream));
  return kernel->explain(status, nullptr, static_cast<uint32_t>(kernel->info.residentCtas));
}

int32_t shapejitRtCudaFillBlock(const Kernel *kernel, void *const *operands, const int64_t *values,
                                void *workspace, void *entry) {
  Status status = requireForm(*kernel, /*block=*/true);
  if (!status)
    status = fillBlock(*kernel, operands, values, workspace, entry);
  return kernel->explain(status, values, 0);
}

int32_t shapejitRtCudaReserve(const Kernel *kernel, void *stream) {
  Status status = ShapejitRtCudaOk;
  if (kernel->takesWorkspace && kernel->info.residentCtas != 0 && !kernel->block)
    status = reserve(*kernel, static_cast<abi::Stream>(stream));
  return kernel->explain(status, nullptr, 0);
}
