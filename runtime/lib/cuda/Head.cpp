// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Head.h"

#include <algorithm>

using namespace shapejit::rt::cuda;

Status Head::make(const ShapejitRtCudaProgramDescription &description) {
  const char *entry = description.headEntry;
  module = description.head;
  threads = static_cast<unsigned>(description.headThreads);
  words = description.headWords;
  UseDevice use(*module->device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  abi::Result result = driver.cuModuleGetFunction(&function, module->handle, entry);
  if (result == abi::kNotFound)
    return fail(ShapejitRtCudaBadInterface, "head kernel %s: its machine code has no such function",
                entry);
  if (result != abi::kSuccess)
    return failDriver("cuModuleGetFunction", result);
  if (driver.cuFuncLoad)
    SHAPEJIT_CUDA_TRY(cuFuncLoad, function);
  // As the kernels after it, so that the first of them need not wait for another division.
  SHAPEJIT_CUDA_TRY(cuFuncSetAttribute, function, abi::kPreferredSharedMemoryCarveout,
                    abi::kMostSharedMemory);
  if (!driver.cuFuncGetParamInfo)
    return ShapejitRtCudaOk;
  const size_t wanted[] = {8, 8, 8, 4, 8 * static_cast<size_t>(words)};
  for (size_t i = 0; i < 5; ++i) {
    size_t offset = 0, bytes = 0;
    if (driver.cuFuncGetParamInfo(function, i, &offset, &bytes) || bytes != wanted[i])
      return fail(ShapejitRtCudaBadInterface,
                  "head kernel %s: parameter %zu takes %zu bytes in its function, and %zu with %d "
                  "words",
                  entry, i, bytes, wanted[i], words);
  }
  return ShapejitRtCudaOk;
}

HeadCall::HeadCall(const Head &head, const PatchTable &patches, abi::Address block,
                   const int64_t *words)
    : head(head), table(patches.records()->address), block(block),
      nothing(head.module->device->nothing), count(static_cast<uint32_t>(patches.recordCount())),
      ctas(std::max(1u, (count + head.records() - 1) / head.records())),
      parameters{&table, &this->block, &nothing, &count, const_cast<int64_t *>(words)} {}

Status HeadCall::launch(abi::Stream stream) {
  abi::LaunchConfig config = {};
  config.gridDimX = ctas;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = head.threads;
  config.hStream = stream;
  SHAPEJIT_CUDA_TRY(cuLaunchKernelEx, &config, head.function, parameters, nullptr);
  return ShapejitRtCudaOk;
}

abi::KernelNodeParams HeadCall::params() {
  abi::KernelNodeParams params = {};
  params.func = head.function;
  params.gridDimX = ctas;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = head.threads;
  params.kernelParams = parameters;
  return params;
}

Status HeadCall::addTo(abi::Graph graph, abi::GraphNode &node) {
  abi::KernelNodeParams given = params();
  SHAPEJIT_CUDA_TRY(cuGraphAddKernelNode, &node, graph, nullptr, 0, &given);
  return ShapejitRtCudaOk;
}

Status HeadCall::set(abi::GraphExec graph, abi::GraphNode node) {
  abi::KernelNodeParams given = params();
  SHAPEJIT_CUDA_TRY(cuGraphExecKernelNodeSetParams, graph, node, &given);
  return ShapejitRtCudaOk;
}
