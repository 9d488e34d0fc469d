// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How threads wait for each other: for a short while actively, then asleep on a futex.

#ifndef SHAPEJIT_RT_WAIT_H
#define SHAPEJIT_RT_WAIT_H

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shapejit::rt {

/// Sleeps while `word` holds `value`, until woken; may return early.
template <typename T> void futexWait(std::atomic<T> &word, T value) {
  static_assert(sizeof(word) == 4, "a futex has 32 bits");
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

/// Wakes at most `count` threads that sleep on `word`.
template <typename T> void futexWake(std::atomic<T> &word, int count = INT_MAX) {
  static_assert(sizeof(word) == 4, "a futex has 32 bits");
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

/// Limits active waiting to a time.
class Spin {
public:
  explicit Spin(int64_t nanoseconds) : remaining(nanoseconds) {}

  /// Pauses for a moment; false once the time is up.
  bool again() {
    _mm_pause();
    if (++pauses % kPausesPerLook != 0)
      return true;
    int64_t time = now();
    if (pauses == kPausesPerLook)
      remaining += time; // from here on the time of the end
    return time < remaining;
  }

private:
  // A look at the clock costs about as much as a pause; short waits never get to one.
  static constexpr uint32_t kPausesPerLook = 16;

  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
  }

  int64_t remaining;
  uint32_t pauses = 0;
};

} // namespace shapejit::rt

#endif // SHAPEJIT_RT_WAIT_H
