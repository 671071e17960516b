#pragma once

#include <string>

#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// Whether `configuration` can train the model called `model` on `world` ranks only if they read
/// each other's memory: else they gather split parameters together, and so take equal branches.
inline bool needs_windows(const Configuration& configuration, const std::string& model, int world) {
  const int ranks = configuration.reshard_after_forward.value_or(1);
  const bool has_second_shards = ranks > 1 && ranks < configuration.degrees_at(world).parameters;
  const bool has_branches = model == "Branches" || model == "BranchingBlocks";
  return has_second_shards || (configuration.splits_parameters() && has_branches);
}

}  // namespace tessera::internal::testing
