// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A CUDA driver for tests: what it can be asked and told beside the driver's functions.
//
// Device memory is host memory, kernels do not run, streams have no work. It records launches,
// checks how it is called, and fails on demand. A module's image is text: the line "fake", then a
// line for each function with its name, its registers, its static shared memory, the most threads
// of a CTA, and the bytes of each parameter.
//
// Functions whose names begin with "head_" are head kernels of programs, and do run: what they
// write can be compared with what launches without a graph are given.

#ifndef SHAPEJIT_RT_TEST_FAKE_CUDA_H
#define SHAPEJIT_RT_TEST_FAKE_CUDA_H

#include <cstdint>

/// A launch, as the driver was given it.
struct FakeLaunch {
  char entry[64];
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t sharedBytes;
  uint32_t cluster;      ///< 0: no attribute was given
  uint32_t programmatic; ///< 0: no attribute was given, or 0
  uint32_t parameters;
  int32_t carveout; ///< for shared memory, in per cent; -1: the driver's choice
  void *stream;
  void *graph;               ///< that it was captured into; null if it was not
  void *executable;          ///< the executable graph that ran it; null if none did
  uint32_t offsets[512];     ///< of the parameters in `bytes`
  unsigned char bytes[4096]; ///< the parameters, one after the other, as far as there is room
  uint32_t waitCount;        ///< in a graph: of nodes that have an edge to this one
  uint32_t waits[16];        ///< and the first of them; nodes count from 0, the head kernel
};

/// A tensor map, as the fake encodes it into 128 bytes.
struct FakeTensorMap {
  uint64_t address;
  uint8_t element, rank, swizzle, promotion;
  uint32_t reserved;
  uint64_t dims[5];
  uint64_t pitches[4];
  uint16_t box[5];
  uint8_t steps[3]; ///< in im2col mode, where box is channels and pixels; else 0
  uint8_t padding[3];
  int16_t lower[3], upper[3];
  uint32_t unused[3];
};
static_assert(sizeof(FakeTensorMap) == 128, "a tensor map has 128 bytes");

extern "C" {
/// Has the call of a function of the driver, after `skipped` calls, fail with that result, once.
void fakeFail(const char *function, int result, int skipped);
/// Whether launches wait, as they do when a stream's queue is full.
void fakeHoldLaunches(int hold);
/// Launches that wait.
int fakeHeldLaunches(void);
/// Calls of a function of the driver so far.
int fakeCalls(const char *function);
/// Makes the driver one of this CUDA version.
void fakeDriverVersion(int version);

int fakeLaunches(void);
const FakeLaunch *fakeLaunchAt(int index);
void fakeForgetLaunches(void);

void *fakeStreamCreate(int device);
void fakeStreamDestroy(void *stream);
void fakeBeginCapture(void *stream, int mode);
/// Has a stream join the capture of another one, as waiting for an event of that does.
void fakeJoinCapture(void *stream, void *origin);
/// The graph, or null if a call spoiled the capture.
void *fakeEndCapture(void *stream);
/// Ends what the graph holds, in another thread.
void fakeGraphDestroy(void *graph);

/// Makes the primary context of a device current in the calling thread; negative: none.
void fakeSetContext(int device);
/// The device whose context is current in the calling thread; negative: none.
int fakeContext(void);

int fakeModules(void);
int fakeGraphs(void); ///< that the library made
int fakeEvents(void);
int fakeExecutables(void); ///< executable graphs
/// Runs a graph that fakeEndCapture() gave, as an executable made from it would.
void fakeGraphReplay(void *graph);
int64_t fakeMemory(void); ///< bytes that are allocated
/// What was done that must not be, one sentence a line; empty if nothing.
const char *fakeViolations(void);
}

#endif // SHAPEJIT_RT_TEST_FAKE_CUDA_H
