// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A loop whose iterations the members of a team take chunk by chunk.

#ifndef SHAPEJIT_RT_SHAREDLOOP_H
#define SHAPEJIT_RT_SHAREDLOOP_H

#include <atomic>
#include <cstdint>

namespace shapejit::rt {

/// A range of iterations, counted from 0.
struct Chunk {
  uint64_t first, size;
};

/// What a loop's iterations are split into.
struct Partition {
  enum Kind : uint32_t {
    Dynamic, ///< chunks of one size
    Guided,  ///< a part of what is left, and at least `chunk`
  };

  uint64_t iterations;
  uint64_t chunk;
  Kind kind;
};

/// The members find the loop that they are at by counting the loops they met in their region. An
/// object serves the loops of one such number, modulo the number of objects, one after the other.
class SharedLoop {
public:
  /// Makes the object serve the first loop of a new region; no thread may use it meanwhile.
  void reset();

  /// Enters use number `use` of this object, counted from 0: the first member to come sets the loop
  /// up. From the second use on `members` must be final: the object is free once all of them are
  /// through with the use before.
  void enter(uint32_t use, uint32_t members, const Partition &partition);

  /// The next chunk; false when there is none left, which each member is told exactly once.
  bool next(Chunk &chunk, uint32_t threads);

  /// Iterations of the loop.
  uint64_t iterations() const { return partition.iterations; }

private:
  bool nextGuided(Chunk &chunk, uint32_t threads);

  /// Twice the uses that were set up; odd while one is being set up.
  std::atomic<uint32_t> turn{0};
  /// Members that are through with the current use.
  std::atomic<uint32_t> finished{0};
  Partition partition{};
  /// Chunks (dynamic) or iterations (guided) that were handed out. On a cache line of its own: all
  /// members write it, and read what is above for each chunk.
  alignas(64) std::atomic<uint64_t> cursor{0};
};

} // namespace shapejit::rt

#endif // SHAPEJIT_RT_SHAREDLOOP_H
