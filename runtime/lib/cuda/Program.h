// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Programs of many launches: regions, bindings, instances and calls.

#ifndef SHAPEJIT_RT_CUDA_PROGRAM_H
#define SHAPEJIT_RT_CUDA_PROGRAM_H

#include "Instance.h"

/// Locks are taken in this order: `making` or `adding`, then `binding`, then `list` or that of an
/// instance; never the last two together.
struct ShapejitRtCudaProgram {
  using Status = shapejit::rt::cuda::Status;

  static constexpr int32_t kMaxWords = 8192;

  static Status create(const ShapejitRtCudaProgramDescription &description,
                       ShapejitRtCudaProgram *&program);
  void destroy();

  Status addRegion(int64_t key, const ShapejitRtCudaProgramLaunch *launches, int32_t count);
  Status bind(const int64_t *symbols, void *const *buffers);
  Status prepare(int32_t &missing);
  int32_t run(const int64_t *symbols, void *const *buffers, void *arena,
              shapejit::rt::cuda::abi::Stream stream);
  void use(ShapejitRtCudaProgramUse &result);

private:
  using Region = shapejit::rt::cuda::Region;
  using Instance = shapejit::rt::cuda::Instance;
  using Capture = shapejit::rt::cuda::Capture;

  Status describe(const ShapejitRtCudaProgramDescription &description);

  // Regions are only ever added.
  Region *find(int64_t key) const;
  Status makeRegion(int64_t key, const ShapejitRtCudaProgramLaunch *launches, int32_t count,
                    Region *&region);

  // The fixed words; `binding` is held for reading while something relies on them.
  bool isBound(const int64_t *words) const;
  Status bindTo(const int64_t *words);
  Status rebind(const int64_t *words);
  Status bindRegion(Region &region, const int64_t *words);

  // Instances.
  void destroyInstances();
  Status acquire(uint64_t id, Instance *&instance, bool &shared);
  void release(Instance *instance);
  Status makeInstance(Instance *&instance);
  void addInstance(Instance *instance);
  Instance *findInstance(uint64_t stream) const;
  Instance *takeIdle();
  void endInstance(Instance *instance);
  bool nextMissing(Instance *&instance, Region *&region);
  int32_t countMissing();
  bool isMissing(const Instance &instance, const Region &region) const;

  int32_t runBound(Region &region, const int64_t *words, shapejit::rt::cuda::abi::Stream stream);
  int32_t runIn(Region &region, const int64_t *words, shapejit::rt::cuda::abi::Stream stream);
  Status runCaptured(Region &region, const int64_t *words, shapejit::rt::cuda::abi::Stream stream,
                     const Capture &capture);

  shapejit::rt::cuda::Device *device = nullptr;
  shapejit::rt::cuda::Head head;
  int32_t callWords = 0;
  int32_t wordCount = 0;
  int32_t maxInstances = 0;
  ShapejitRtCudaRegionOf regionOf = nullptr;
  ShapejitRtCudaWordsOf wordsOf = nullptr;

  pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; ///< one graph at a time
  pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER; ///< one region at a time
  /// Calls must not keep one that brings other words waiting for ever.
  pthread_rwlock_t binding = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
  pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER; ///< of the instances

  std::atomic<Region *> regions{nullptr};
  int64_t *fixed = nullptr; ///< the fixed words that are bound
  bool bound = false;
  Instance *instances = nullptr;
  int32_t instanceCount = 0;
  uint64_t uses = 0; ///< the clock of instances' last use

  std::atomic<int64_t> graphCalls{0}, streamCalls{0}, capturedCalls{0}, bindings{0};
};

#endif // SHAPEJIT_RT_CUDA_PROGRAM_H
