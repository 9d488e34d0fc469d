// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include "Program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

using namespace shapejit::rt::cuda;

using Program = ShapejitRtCudaProgram;

namespace {

/// Holds a lock of readers and writers while in scope.
class ReadLock {
public:
  explicit ReadLock(pthread_rwlock_t &lock) : lock(lock) { pthread_rwlock_rdlock(&lock); }
  ~ReadLock() { pthread_rwlock_unlock(&lock); }
  ReadLock(const ReadLock &) = delete;
  ReadLock &operator=(const ReadLock &) = delete;

private:
  pthread_rwlock_t &lock;
};

class WriteLock {
public:
  explicit WriteLock(pthread_rwlock_t &lock) : lock(lock) { pthread_rwlock_wrlock(&lock); }
  ~WriteLock() { pthread_rwlock_unlock(&lock); }
  WriteLock(const WriteLock &) = delete;
  WriteLock &operator=(const WriteLock &) = delete;

private:
  pthread_rwlock_t &lock;
};

template <typename T> Status makeRecord(T *&made) {
  void *memory = std::malloc(sizeof(T));
  if (!memory)
    return fail(ShapejitRtCudaDriverFailed, "no memory for the records of a program");
  made = new (memory) T;
  return ShapejitRtCudaOk;
}

template <typename T> void endRecord(T *record) {
  record->~T();
  std::free(record);
}

/// The words of a call, on the stack.
struct Words {
  int64_t values[Program::kMaxWords];
};

} // namespace

// Making and ending.

Status Program::create(const ShapejitRtCudaProgramDescription &description, Program *&program) {
  DeviceMemory::freeRetired();
  Program *made = nullptr;
  SHAPEJIT_TRY(makeRecord(made));
  if (Status status = made->describe(description)) {
    made->destroy();
    return status;
  }
  program = made;
  return ShapejitRtCudaOk;
}

Status Program::describe(const ShapejitRtCudaProgramDescription &from) {
  const struct {
    const char *what;
    int64_t value, least, most;
  } rules[] = {
      {"the number of words", from.wordCount, 0, kMaxWords},
      {"the number of words of a call", from.callWords, 0,
       std::min(from.wordCount, from.headWords)},
      {"the number of words of its head kernel", from.headWords, 1, Head::kMostWords},
      {"the number of threads of its head kernel", from.headThreads, 32, 1024},
      {"the number of instances", from.maxInstances, 1, 1024},
  };
  for (const auto &rule : rules)
    if (rule.value < rule.least || rule.value > rule.most)
      return fail(ShapejitRtCudaBadInterface, "a program: %s is %lld; it must be within %lld..%lld",
                  rule.what, static_cast<long long>(rule.value), static_cast<long long>(rule.least),
                  static_cast<long long>(rule.most));
  device = from.head->device;
  callWords = from.callWords;
  wordCount = from.wordCount;
  maxInstances = from.maxInstances;
  regionOf = from.regionOf;
  wordsOf = from.wordsOf;
  from.head->retain();
  head.module = from.head;
  SHAPEJIT_TRY(head.make(from));
  size_t bytes = sizeof(int64_t) * static_cast<size_t>(std::max(wordCount - callWords, 1));
  fixed = static_cast<int64_t *>(std::malloc(bytes));
  if (!fixed)
    return fail(ShapejitRtCudaDriverFailed, "no memory for the words of a program");
  return ShapejitRtCudaOk;
}

void Program::destroy() {
  if (device) {
    UseDevice use(*device);
    AllowDuringCapture allow;
    destroyInstances();
  }
  Region *region = regions.load(std::memory_order_acquire);
  while (region) {
    Region *next = region->next;
    endRecord(region);
    region = next;
  }
  std::free(fixed);
  if (head.module)
    head.module->release();
  endRecord(this);
  DeviceMemory::freeRetired();
  ShapejitRtCudaModule::unloadRetired();
}

// Regions.

Region *Program::find(int64_t key) const {
  Region *region = regions.load(std::memory_order_acquire);
  while (region && region->key != key)
    region = region->next;
  return region;
}

Status Program::addRegion(int64_t key, const ShapejitRtCudaProgramLaunch *launches, int32_t count) {
  Lock one(adding);
  ReadLock read(binding);
  if (find(key))
    return ShapejitRtCudaOk;
  Region *region;
  SHAPEJIT_TRY(makeRegion(key, launches, count, region));
  region->next = regions.load(std::memory_order_relaxed);
  regions.store(region, std::memory_order_release);
  return ShapejitRtCudaOk;
}

Status Program::makeRegion(int64_t key, const ShapejitRtCudaProgramLaunch *launches, int32_t count,
                           Region *&region) {
  SHAPEJIT_TRY(makeRecord(region));
  region->key = key;
  Status status = region->launches.make(launches, count, wordCount, *device);
  if (!status && bound) {
    UseDevice use(*device);
    status = use.status;
    Words words;
    memcpy(words.values + callWords, fixed, sizeof(int64_t) * (wordCount - callWords));
    if (!status)
      status = bindRegion(*region, words.values);
  }
  if (status)
    endRecord(region);
  return status;
}

// Bindings.

bool Program::isBound(const int64_t *words) const {
  return bound && memcmp(fixed, words + callWords,
                         sizeof(int64_t) * static_cast<size_t>(wordCount - callWords)) == 0;
}

Status Program::bind(const int64_t *symbols, void *const *buffers) {
  Words words;
  wordsOf(symbols, buffers, nullptr, words.values);
  return bindTo(words.values);
}

Status Program::bindTo(const int64_t *words) {
  WriteLock write(binding);
  if (isBound(words)) // by another thread meanwhile
    return ShapejitRtCudaOk;
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  // Blocks and graphs have the old words; the driver waits for calls that use them.
  destroyInstances();
  bound = false;
  Status status = rebind(words);
  if (!status) {
    memcpy(fixed, words + callWords, sizeof(int64_t) * static_cast<size_t>(wordCount - callWords));
    bound = true;
    bindings.fetch_add(1, std::memory_order_relaxed);
  }
  DeviceMemory::freeRetired();
  return status;
}

Status Program::rebind(const int64_t *words) {
  for (Region *region = regions.load(std::memory_order_acquire); region; region = region->next)
    SHAPEJIT_TRY(bindRegion(*region, words));
  return ShapejitRtCudaOk;
}

Status Program::bindRegion(Region &region, const int64_t *words) {
  SHAPEJIT_TRY(region.bind(*device, words, callWords));
  int32_t needed = callWords + region.table->encodedWords();
  if (needed <= head.words)
    return ShapejitRtCudaOk;
  region.unbind();
  return fail(ShapejitRtCudaBadInterface,
              "a program: the head kernel takes %d words; with the im2col maps of a region a call "
              "has %d",
              head.words, needed);
}

// Instances.

void Program::destroyInstances() {
  while (instances) {
    Instance *next = instances->next;
    endRecord(instances);
    instances = next;
  }
  instanceCount = 0;
}

Status Program::makeInstance(Instance *&instance) {
  SHAPEJIT_TRY(makeRecord(instance));
  // The first one is ready for every region.
  instance->complete = !instances;
  addInstance(instance);
  return ShapejitRtCudaOk;
}

void Program::addInstance(Instance *instance) {
  instance->next = instances;
  instances = instance;
  ++instanceCount;
}

/// The instance of a stream; the caller is one of its users until it is released. `shared` says
/// that streams take it in turn, since there are more of them than instances.
Status Program::acquire(uint64_t id, Instance *&instance, bool &shared) {
  Instance *ended = nullptr;
  {
    Lock held(list);
    instance = findInstance(id);
    if (!instance && instanceCount >= maxInstances) {
      Instance *idle = takeIdle();
      if (idle && idle->canHandOver()) {
        idle->handOver();
        addInstance(idle);
        instance = idle;
      } else {
        // What it did last, in a stream that may be gone, can be waited for with the device only.
        ended = idle;
      }
    }
    if (!instance) {
      if (Status status = makeInstance(instance)) {
        endInstance(ended);
        return status;
      }
      instance->complete |= ended && ended->complete;
    }
    instance->stream = id;
    instance->lastUse = ++uses;
    ++instance->users;
    shared = instanceCount >= maxInstances;
  }
  endInstance(ended);
  return ShapejitRtCudaOk;
}

void Program::release(Instance *instance) {
  Instance *ended = nullptr;
  {
    Lock held(list);
    --instance->users;
    // While all were in use there may have been one more.
    if (instanceCount > maxInstances)
      ended = takeIdle();
  }
  endInstance(ended);
}

/// That of a stream, or one that no stream has yet.
Instance *Program::findInstance(uint64_t stream) const {
  Instance *spare = nullptr;
  for (Instance *instance = instances; instance; instance = instance->next) {
    if (instance->stream == stream)
      return instance;
    if (instance->stream == 0)
      spare = instance;
  }
  return spare;
}

/// Takes the instance that nobody uses and that was used longest ago off the list; null if all are
/// in use.
Instance *Program::takeIdle() {
  Instance **oldest = nullptr;
  for (Instance **link = &instances; *link; link = &(*link)->next)
    if ((*link)->users == 0 && (!oldest || (*link)->lastUse < (*oldest)->lastUse))
      oldest = link;
  if (!oldest)
    return nullptr;
  Instance *taken = *oldest;
  *oldest = taken->next;
  --instanceCount;
  return taken;
}

/// Ends one that is off the list; the driver waits for the calls of its stream.
void Program::endInstance(Instance *instance) {
  if (!instance)
    return;
  AllowDuringCapture allow;
  endRecord(instance);
  DeviceMemory::freeRetired();
}

bool Program::isMissing(const Instance &instance, const Region &region) const {
  const Slot *slot = instance.find(region);
  int state = slot ? slot->state.load(std::memory_order_acquire) : Slot::kPlain;
  return state == Slot::kWanted || (state == Slot::kPlain && instance.complete);
}

/// A graph that is to be made; the caller is a user of the instance then.
bool Program::nextMissing(Instance *&instance, Region *&region) {
  Lock held(list);
  // Those that were called before those that may be.
  for (bool called : {true, false})
    for (instance = instances; instance; instance = instance->next)
      for (region = regions.load(std::memory_order_acquire); region; region = region->next) {
        if (!isMissing(*instance, *region) || (called && !instance->find(*region)))
          continue;
        ++instance->users;
        return true;
      }
  return false;
}

int32_t Program::countMissing() {
  Lock held(list);
  int32_t count = 0;
  for (Instance *instance = instances; instance; instance = instance->next)
    for (Region *region = regions.load(std::memory_order_acquire); region; region = region->next)
      count += isMissing(*instance, *region);
  return count;
}

Status Program::prepare(int32_t &missing) {
  missing = 0;
  Lock one(making);
  ReadLock read(binding);
  if (!bound)
    return fail(ShapejitRtCudaBadCall, "a program has no graphs before its weights are bound");
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  AllowDuringCapture allow;
  {
    Lock held(list);
    Instance *made;
    if (!instances)
      SHAPEJIT_TRY(makeInstance(made));
  }
  Instance *instance;
  Region *region;
  Status status = ShapejitRtCudaOk;
  if (nextMissing(instance, region)) {
    status = instance->makeGraph(head, *region);
    release(instance);
  }
  missing = countMissing();
  return status;
}

// Calls.

int32_t Program::run(const int64_t *symbols, void *const *buffers, void *arena,
                     abi::Stream stream) {
  Region *region = find(regionOf(symbols));
  if (!region)
    return ShapejitRtCudaRegionMissing;
  Words words;
  wordsOf(symbols, buffers, arena, words.values);
  // The head kernel is handed as many words as it takes.
  for (int32_t i = wordCount; i < head.words; ++i)
    words.values[i] = 0;
  UseDevice use(*device);
  SHAPEJIT_TRY(use.status);
  for (;;) {
    {
      ReadLock read(binding);
      if (isBound(words.values))
        return runBound(*region, words.values, stream);
    }
    SHAPEJIT_TRY(bindTo(words.values));
  }
}

int32_t Program::runBound(Region &region, const int64_t *words, abi::Stream stream) {
  SHAPEJIT_TRY(region.table->check(region.launches, words));
  Words extended;
  if (int32_t more = region.table->encodedWords()) {
    memcpy(extended.values, words, sizeof(int64_t) * static_cast<size_t>(callWords));
    SHAPEJIT_TRY(region.table->encode(*device, words, extended.values + callWords));
    for (int32_t i = callWords + more; i < head.words; ++i)
      extended.values[i] = 0;
    words = extended.values;
  }
  Capture capture;
  SHAPEJIT_TRY(Capture::of(stream, capture));
  return capture.id ? runCaptured(region, words, stream, capture) : runIn(region, words, stream);
}

int32_t Program::runIn(Region &region, const int64_t *words, abi::Stream stream) {
  // A handle may be given to another stream when its own is gone.
  unsigned long long id;
  SHAPEJIT_CUDA_TRY(cuStreamGetId, stream, &id);
  Instance *instance;
  Instance::Call call = {head, region, words, stream};
  SHAPEJIT_TRY(acquire(id + 1, instance, call.record)); // 0 is no stream's
  Status status = instance->run(call);
  release(instance);
  SHAPEJIT_TRY(status);
  (call.byGraph ? graphCalls : streamCalls).fetch_add(1, std::memory_order_relaxed);
  return call.missing ? static_cast<int32_t>(ShapejitRtCudaGraphMissing) : ShapejitRtCudaOk;
}

/// The caller's graph may run at any time and outlive the program, so it has a block of its own.
Status Program::runCaptured(Region &region, const int64_t *words, abi::Stream stream,
                            const Capture &capture) {
  Block block;
  MemoryRef none;
  SHAPEJIT_TRY(Block::make(*device, region, none, block));
  SHAPEJIT_TRY(block.memory->holdBy(capture));
  if (block.workspace)
    SHAPEJIT_TRY(block.workspace->holdBy(capture));
  SHAPEJIT_TRY(region.table->records()->holdBy(capture));
  SHAPEJIT_TRY(head.module->holdBy(capture));
  for (const RegionLaunch &launch : region.launches.launches)
    SHAPEJIT_TRY(launch.kernel->module->holdBy(capture));
  HeadCall call(head, *region.table, block.memory->address, words);
  SHAPEJIT_TRY(launchRegion(call, region, block, stream));
  capturedCalls.fetch_add(1, std::memory_order_relaxed);
  return ShapejitRtCudaOk;
}

// Reports.

void Program::use(ShapejitRtCudaProgramUse &result) {
  DeviceMemory::freeRetired();
  result = {};
  ReadLock read(binding);
  Lock held(list);
  for (Region *region = regions.load(std::memory_order_acquire); region; region = region->next) {
    ++result.regions;
    if (!region->table)
      continue;
    result.patches = std::max(result.patches, region->table->recordCount());
    result.tableBytes += region->table->records()->bytes;
  }
  for (Instance *instance = instances; instance; instance = instance->next) {
    ++result.instances;
    const DeviceMemory *counted = nullptr;
    for (Slot *slot = instance->slots.load(std::memory_order_acquire); slot; slot = slot->next) {
      result.graphs += slot->state.load(std::memory_order_acquire) == Slot::kReady;
      result.blockBytes += slot->block.memory->bytes;
      // Neighbours share it, except where it grew.
      const DeviceMemory *workspace = slot->block.workspace.get();
      result.blockBytes += workspace && workspace != counted ? workspace->bytes : 0;
      counted = workspace ? workspace : counted;
    }
  }
  result.graphCalls = graphCalls.load(std::memory_order_relaxed);
  result.streamCalls = streamCalls.load(std::memory_order_relaxed);
  result.capturedCalls = capturedCalls.load(std::memory_order_relaxed);
  result.bindings = bindings.load(std::memory_order_relaxed);
}

// The C interface.

int32_t shapejitRtCudaProgramCreate(const ShapejitRtCudaProgramDescription *description,
                                    Program **program) {
  return Program::create(*description, *program);
}

void shapejitRtCudaProgramRelease(Program *program) { program->destroy(); }

int32_t shapejitRtCudaProgramAddRegion(Program *program, int64_t key,
                                       const ShapejitRtCudaProgramLaunch *launches, int32_t count) {
  return program->addRegion(key, launches, count);
}

int32_t shapejitRtCudaProgramBind(Program *program, const int64_t *symbols, void *const *buffers) {
  return program->bind(symbols, buffers);
}

int32_t shapejitRtCudaProgramPrepare(Program *program, int32_t *missing) {
  return program->prepare(*missing);
}

int32_t shapejitRtCudaProgramRun(Program *program, const int64_t *symbols, void *const *buffers,
                                 void *arena, void *stream) {
  return program->run(symbols, buffers, arena, static_cast<abi::Stream>(stream));
}

void shapejitRtCudaProgramUse(Program *program, ShapejitRtCudaProgramUse *use) {
  program->use(*use);
}
