#pragma once

#include <functional>

#include "tessera/join.h"

namespace tessera::internal {

/// What an engine and its JoinScope know of each other.
struct OpenJoin {
  std::function<void()> follow;  ///< JoinScope::follow(); empty: the engine is gone, or the loop is
                                 ///< over on all ranks
  JoinOptions options;
  bool is_left = false;      ///< the scope has ended before all ranks had
  bool is_followed = false;  ///< follow() has been called: a loop over it has run to its end
};

}  // namespace tessera::internal
