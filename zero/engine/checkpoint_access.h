#pragma once

#include <vector>

#include "tessera/engine.h"
#include "tessera/memory_meter.h"
#include "tessera/state_stream.h"

namespace tessera::internal {

/// What checkpoints use of an engine beside its public calls.
class CheckpointAccess {
 public:
  /// Counts what checkpoints hold.
  static MemoryMeter& meter(Engine& engine);

  /// Every entry of the run's state, without ranges. Collective; throws as Engine::write_state().
  static std::vector<StateOutline> entries(Engine& engine);

  /// Before anything collective of `call`, which is not one of the engine's own. Collective in a
  /// loop over Engine::join(), where it throws c10::Error on every rank, by that name, if a rank
  /// without batches follows; nothing elsewhere.
  static void begin(Engine& engine, const char* call);
};

}  // namespace tessera::internal
