#pragma once

namespace tessera::internal {

class ShardedEngine;

/// What an engine and its Engine::AverageScope know of each other.
struct OpenAverage {
  ShardedEngine* engine;    ///< null: it is gone
  bool is_dropped = false;  ///< the scope has ended without end()
};

}  // namespace tessera::internal
