// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_RT_TEST_CHECK_H
#define SHAPEJIT_RT_TEST_CHECK_H

#include <cstdio>
#include <cstdlib>

/// Ends the test program unless the condition holds.
#define CHECK(condition) ((condition) ? void() : checkFailed(__FILE__, __LINE__, #condition))

[[noreturn]] inline void checkFailed(const char *file, int line, const char *condition) {
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
  std::abort();
}

#endif // SHAPEJIT_RT_TEST_CHECK_H
