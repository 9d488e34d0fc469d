// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Programs of many launches on NVIDIA GPUs, run under constant CUDA graphs: a part of the C
// interface of libshapejit_rt.so, on top of `cuda.h`, whose rules hold here too.
//
// All kernels of such a program are in block form: they read their parameters from a block in
// device memory. What a call brings along (sizes, addresses) is an array of *words*. A *head
// kernel*, which gets the words by value, writes them into the block, first of all; the graph of
// the head kernel and the kernels after it never changes, whatever the sizes are. That every launch
// has a fixed kernel holds within a *region* of sizes only, so there is one graph a region.
//
// Calls in one stream run one after the other and share an *instance*: a block and an executable
// graph of each region. Streams that run at the same time have instances of their own.
//
// A call never waits for a graph to be made: until its graph is there it launches the kernels one
// by one. Graphs are made by shapejitRtCudaProgramPrepare(), in a thread of the caller's.

#ifndef SHAPEJIT_RT_GRAPH_H
#define SHAPEJIT_RT_GRAPH_H

#include "shapejit_rt/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What shapejitRtCudaProgramRun() answers beside a ShapejitRtCudaStatus. No failures, no texts.
enum ShapejitRtCudaAnswer {
  /// The call is queued, launch by launch, since its graph is not there: have it made.
  ShapejitRtCudaGraphMissing = -1,
  /// Nothing is queued: the program does not know the call's region. Add it, and call again.
  ShapejitRtCudaRegionMissing = -2,
};

/// The number of the region that a call's symbols lie in.
typedef int64_t (*ShapejitRtCudaRegionOf)(const int64_t *symbols);

/// Writes all words of a call.
typedef void (*ShapejitRtCudaWordsOf)(const int64_t *symbols, void *const *buffers, void *arena,
                                      int64_t *words);

/// What a program is. Everything is copied when it is made.
struct ShapejitRtCudaProgramDescription {
  /// Has the head kernel.
  struct ShapejitRtCudaModule *head;
  const char *headEntry;
  int32_t headThreads; ///< of a CTA, in whole warps
  int32_t headWords;   ///< how many the head kernel takes; `callWords` at least
  /// The first words may differ from call to call. The others are fixed: constants, and addresses
  /// of weights. A call that brings others of those has everything made anew.
  int32_t callWords;
  int32_t wordCount;
  /// The most streams that have an instance each. More streams take turns: one that comes gets the
  /// instance that was used longest ago, and waits for its last call.
  int32_t maxInstances;
  ShapejitRtCudaRegionOf regionOf;
  ShapejitRtCudaWordsOf wordsOf;
};

/// A launch of a region.
struct ShapejitRtCudaProgramLaunch {
  const struct ShapejitRtCudaKernel *kernel; ///< in block form
  const int32_t *operands;                   ///< numbers of the words that are their addresses
  const int32_t *values;                     ///< numbers of the words that are its values
  int32_t operandCount;
  int32_t valueCount;
  /// CTAs of the grid, in whole clusters, if no size of the region has work for more; at most as
  /// many as are resident. 0: as many as are resident.
  int32_t ctas;
  /// Numbers of launches of the region ahead of it, ascending: those that have to end before it
  /// reads or writes. What they wait for has ended then, too. Null: the one just ahead of it.
  const int32_t *waits;
  int32_t waitCount; ///< 0 with `waits`: for none, but the head kernel
};

struct ShapejitRtCudaProgram;

/// Makes a program, without regions. Its kernels and modules must live as long as it does.
SHAPEJIT_RT_API int32_t
shapejitRtCudaProgramCreate(const struct ShapejitRtCudaProgramDescription *description,
                            struct ShapejitRtCudaProgram **program);

/// Ends a program that no thread uses any more. Work that is queued may still run; graphs of
/// callers that its calls were captured into keep what they need.
SHAPEJIT_RT_API void shapejitRtCudaProgramRelease(struct ShapejitRtCudaProgram *program);

/// Adds a region: its launches, each behind all that it waits for. Its graph runs what does not
/// wait for each other side by side; where launches are queued one by one, they run in this order.
/// Of launches that run side by side, one at most has a workspace. Does nothing if the region is
/// there.
SHAPEJIT_RT_API int32_t
shapejitRtCudaProgramAddRegion(struct ShapejitRtCudaProgram *program, int64_t key,
                               const struct ShapejitRtCudaProgramLaunch *launches, int32_t count);

/// Sets the fixed words, from the words of some call; what else those hold does not matter.
SHAPEJIT_RT_API int32_t shapejitRtCudaProgramBind(struct ShapejitRtCudaProgram *program,
                                                  const int64_t *symbols, void *const *buffers);

/// Makes one graph that is missing: of every region for the first stream that will call, and of
/// every region that another stream called in. `missing` receives how many are missing still. The
/// program must be bound. Meant for a thread in the background: it takes about a millisecond, and
/// calls go on meanwhile.
SHAPEJIT_RT_API int32_t shapejitRtCudaProgramPrepare(struct ShapejitRtCudaProgram *program,
                                                     int32_t *missing);

/// Queues a call in a stream. Returns a ShapejitRtCudaStatus or a ShapejitRtCudaAnswer.
///
/// Every call checks that sizes, strides and addresses keep the rules of the kernels, which takes
/// next to nothing; where a tensor is empty, or a stride is one that only a dim of size 1 may have,
/// it takes as long as encoding the parameters of all launches, some 20 us.
///
/// A stream that is being captured gets the launches themselves; the block that they then read
/// belongs to the graph, as the machine code does.
SHAPEJIT_RT_API int32_t shapejitRtCudaProgramRun(struct ShapejitRtCudaProgram *program,
                                                 const int64_t *symbols, void *const *buffers,
                                                 void *arena, void *stream);

struct ShapejitRtCudaProgramUse {
  int32_t regions;
  int32_t instances;     ///< with a stream or without
  int32_t graphs;        ///< executable ones, of all instances
  int32_t patches;       ///< parameters that a call changes, in the largest region
  int64_t blockBytes;    ///< device memory of blocks, scratch memory of kernels included
  int64_t tableBytes;    ///< device memory of what the head kernel follows
  int64_t graphCalls;    ///< calls so far that were a launch of a graph
  int64_t streamCalls;   ///< calls so far that were launched one by one
  int64_t capturedCalls; ///< calls so far in streams that were captured
  int64_t bindings;      ///< how often fixed words were set or changed
};

/// What a program has and did.
SHAPEJIT_RT_API void shapejitRtCudaProgramUse(struct ShapejitRtCudaProgram *program,
                                              struct ShapejitRtCudaProgramUse *use);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // SHAPEJIT_RT_GRAPH_H
