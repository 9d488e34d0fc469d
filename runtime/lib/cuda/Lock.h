// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_RT_CUDA_LOCK_H
#define SHAPEJIT_RT_CUDA_LOCK_H

#include <pthread.h>

namespace shapejit::rt::cuda {

/// Holds a mutex while in scope.
class Lock {
public:
  explicit Lock(pthread_mutex_t &mutex) : mutex(mutex) { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;

private:
  pthread_mutex_t &mutex;
};

} // namespace shapejit::rt::cuda

#endif // SHAPEJIT_RT_CUDA_LOCK_H
