// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The head kernel, which writes a call's words into a parameter block.

#ifndef SHAPEJIT_RT_CUDA_HEAD_H
#define SHAPEJIT_RT_CUDA_HEAD_H

#include "Module.h"
#include "Patch.h"

namespace shapejit::rt::cuda {

/// Code of a head kernel. Its parameters are those of `HeadCall`.
struct Head {
  /// A launch may have 32764 bytes of parameters; those beside the words take less than this.
  static constexpr int32_t kMostWords = (32764 - 64) / 8;

  Status make(const ShapejitRtCudaProgramDescription &description);

  /// That a CTA follows: one for each warp.
  unsigned records() const { return threads / 32; }

  ShapejitRtCudaModule *module = nullptr;
  abi::Function function = nullptr;
  unsigned threads = 0;
  int32_t words = 0;
};

/// One launch of the head kernel: what it reads and writes. The words must stay where they are
/// while this is used.
class HeadCall {
public:
  HeadCall(const Head &head, const PatchTable &table, abi::Address block, const int64_t *words);
  HeadCall(const HeadCall &) = delete;
  HeadCall &operator=(const HeadCall &) = delete;

  /// Launches it in a stream, after all that was launched there before.
  Status launch(abi::Stream stream);

  /// Adds it to a graph.
  Status addTo(abi::Graph graph, abi::GraphNode &node);

  /// Makes it what a node of an executable graph will do from its next launch on.
  Status set(abi::GraphExec graph, abi::GraphNode node);

private:
  abi::KernelNodeParams params();

  const Head &head;
  abi::Address table, block, nothing;
  uint32_t count;
  unsigned ctas;
  void *parameters[5];
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_HEAD_H
