#pragma once

#include <functional>

namespace tessera::internal {

/// State that an engine and its Engine::AverageScope share.
struct OpenAverage {
  std::function<void()> end;  ///< what Engine::AverageScope::end() calls; empty: the engine is gone
  bool is_dropped = false;    ///< true if the scope has ended without a call of end()
};

}  // namespace tessera::internal
