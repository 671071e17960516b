#pragma once

#include <functional>

#include "tessera/join.h"

namespace tessera::internal {

/// State that an engine and its JoinScope share.
struct OpenJoin {
  /// what JoinScope::follow() calls; empty if the engine is gone or the loop is over on all ranks
  std::function<void()> follow;
  JoinOptions options;
  bool is_left = false;      ///< the scope ended before the loop was over on all ranks
  bool is_followed = false;  ///< JoinScope::follow() was called, which may happen only once
};

}  // namespace tessera::internal
