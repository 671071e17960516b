#pragma once

#include <functional>

#include "tessera/join.h"

namespace tessera::internal {

/// State that an engine and its JoinScope share.
struct OpenJoin {
  std::function<void()> follow;  ///< JoinScope::follow(); empty if the engine is gone or the loop
                                 ///< is over on all ranks
  JoinOptions options;
  bool is_left = false;      ///< the scope ended before the loop was over on all ranks
  bool is_followed = false;  ///< follow() was called: the loop has run to its end
};

}  // namespace tessera::internal
