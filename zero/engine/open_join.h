#pragma once

#include "tessera/join.h"

namespace tessera::internal {

class ShardedEngine;

/// What an engine and its JoinScope know of each other.
struct OpenJoin {
  ShardedEngine* engine;  ///< null: it is gone, or the loop is over on all ranks
  JoinOptions options;
  bool is_left = false;      ///< the scope has ended before all ranks had
  bool is_followed = false;  ///< follow() has been called: a loop over it has run to its end
};

}  // namespace tessera::internal
