#pragma once

#include <functional>

namespace tessera::internal {

/// State that an engine and its Engine::AverageScope share.
struct OpenAverage {
  std::function<void()> end;  ///< Engine::AverageScope::end(); empty: the engine is gone
  bool is_dropped = false;    ///< the scope has ended without end()
};

}  // namespace tessera::internal
