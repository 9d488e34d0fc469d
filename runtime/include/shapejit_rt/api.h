// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#ifndef SHAPEJIT_RT_API_H
#define SHAPEJIT_RT_API_H

/// Marks what libshapejit_rt.so exports.
#define SHAPEJIT_RT_API __attribute__((visibility("default")))

#endif // SHAPEJIT_RT_API_H
