#pragma once

#include <array>
#include <cstdint>

#include "tessera/bench/micro/laps.h"
#include "tessera/process_group.h"

namespace tessera::internal::bench {

/// The work of all ranks of one Ranks object. Plain numbers, because rank 0 sends it through pipes.
struct Scene {
  enum class Kind : int64_t { kCollective, kBarrier, kGather, kOperators };

  Kind kind;
  std::array<int64_t, 4> numbers{};  ///< their meaning depends on the kind
};

/// Runs `scene` as one rank of `group`: prepares, runs all laps and waits for the other ranks.
/// Every rank calls it with the same scene and number of laps.
void play(const Scene& scene, ProcessGroup& group, Laps& laps);

}  // namespace tessera::internal::bench
