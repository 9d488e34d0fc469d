// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the files of the fake driver share. See FakeCuda.h for what it does.

#ifndef SHAPEJIT_RT_TEST_FAKE_DRIVER_H
#define SHAPEJIT_RT_TEST_FAKE_DRIVER_H

#include "FakeCuda.h"

#include "../lib/cuda/Driver.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace abi = shapejit::rt::cuda::abi;

struct abi::ContextHandle {
  int device;
};
struct abi::FunctionHandle {
  std::string name;
  int registers, sharedBytes, maxThreads;
  std::vector<size_t> parameters;
  abi::ModuleHandle *module;
  int dynamicSharedBytes = 48 << 10;
  bool nonPortable = false;
  int carveout = -1;
};
struct abi::ModuleHandle {
  abi::ContextHandle *context;
  std::map<std::string, abi::FunctionHandle> functions;
};
struct abi::UserObjectHandle {
  void *object;
  void (*destroy)(void *);
  int references;
};
/// A kernel node: a launch without its stream.
struct Node {
  abi::Function function;
  abi::LaunchConfig config;
  uint32_t cluster, programmatic;
  std::vector<std::vector<unsigned char>> parameters;
  std::vector<uint32_t> waits; ///< in a graph: the nodes that have an edge to it
};

/// User objects of a graph and of what was instantiated from it, ended with the last of these.
struct Held {
  std::vector<abi::UserObjectHandle *> objects;
  ~Held();
};
struct abi::GraphNodeHandle {
  abi::GraphHandle *graph;
  size_t number;
};
struct abi::GraphHandle {
  std::shared_ptr<Held> held = std::make_shared<Held>();
  std::vector<Node> nodes;
  std::deque<abi::GraphNodeHandle> handles; ///< of the nodes, if they were added one by one
};
struct abi::GraphExecHandle {
  abi::GraphHandle *source;
  std::shared_ptr<Held> held;
  std::vector<Node> nodes;
};
struct abi::EventHandle {
  unsigned long long stream = 0;                   ///< where it was recorded last
  uint64_t time = 0;                               ///< and when
  std::map<unsigned long long, uint64_t> waited{}; ///< what that stream had waited for
};
struct abi::StreamHandle {
  abi::ContextHandle *context;
  unsigned long long id;
  std::map<unsigned long long, uint64_t> waited{}; ///< for other streams, up to which time
  abi::GraphHandle *graph = nullptr;               ///< that it is captured into
  uint64_t capture = 0;
  abi::CaptureMode mode = abi::kCaptureGlobal;
  std::thread::id capturer{};
  bool spoiled = false;
};

namespace fake {

constexpr int kDevices = 2;
constexpr int kMultiprocessors = 132;
constexpr int kInvalidValue = 1, kInvalidContext = 201, kCaptureUnsupported = 900,
              kCaptureInvalidatedResult = 901;

using Locked = std::lock_guard<std::recursive_mutex>;

struct Failure {
  int result, skipped;
};

// The state of the driver, for whoever holds the lock.
extern std::recursive_mutex lock;
extern abi::ContextHandle contexts[kDevices];
extern abi::StreamHandle legacyStreams[kDevices];
extern std::map<std::string, Failure> failures;
extern std::map<std::string, int> calls;
extern std::string violations;
extern std::deque<FakeLaunch> launches;
extern std::set<abi::ModuleHandle *> modules;
extern std::set<abi::StreamHandle *> streams;
extern std::set<abi::EventHandle *> events;
extern std::set<abi::GraphHandle *> graphs;
extern std::set<abi::GraphExecHandle *> executables;
extern std::map<abi::Address, size_t> memory;
extern unsigned long long nextId;

// That of threads, and what needs no lock.
extern thread_local std::vector<abi::ContextHandle *> stack;
extern thread_local abi::CaptureMode threadMode;
extern thread_local bool inDestructor;
extern std::atomic<int> version;
extern std::atomic<bool> holdsLaunches;
extern std::atomic<int> heldLaunches;

void violate(const std::string &what);
abi::ContextHandle *current();
/// Counts a call and says whether it is to fail.
abi::Result enter(const char *name);
/// Fails, and spoils a capture that forbids the call.
abi::Result forbid(const char *name);
/// The stream of a handle; null if there is none.
abi::StreamHandle *resolve(abi::Stream stream);
/// Forgets who used memory that is given back.
void forgetUse(abi::Address address, size_t bytes);
/// Runs the nodes of a graph.
void replay(const std::vector<Node> &nodes, abi::Stream handle, abi::StreamHandle *stream,
            abi::GraphExecHandle *executable);

#define ENTER(name)                                                                                \
  Locked locked(lock);                                                                             \
  if (abi::Result failure = enter(#name))                                                          \
  return failure

/// The same for a call that a capture forbids.
#define ENTER_UNSAFE(name)                                                                         \
  ENTER(name);                                                                                     \
  if (abi::Result failure = forbid(#name))                                                         \
  return failure

// The driver's functions, by name.
#define SHAPEJIT_FAKE_FUNCTION(name, version, parameters) abi::Result name parameters;
SHAPEJIT_CUDA_REQUIRED(SHAPEJIT_FAKE_FUNCTION)
SHAPEJIT_CUDA_OPTIONAL(SHAPEJIT_FAKE_FUNCTION)
#undef SHAPEJIT_FAKE_FUNCTION

} // namespace fake

#endif // SHAPEJIT_RT_TEST_FAKE_DRIVER_H
