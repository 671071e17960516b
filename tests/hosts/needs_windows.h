#pragma once

#include <string>

#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// Returns true if `configuration` can train the model called `model` on `world` ranks only with
/// windows on each other's memory. Without them ranks gather split parameters together, so all take
/// the same branches.
inline bool needs_windows(const Configuration& configuration, const std::string& model, int world) {
  const int ranks = configuration.reshard_after_forward.value_or(1);
  const bool has_second_shards = ranks > 1 && ranks < configuration.degrees_at(world).parameters;
  const bool has_branches = model == "Branches" || model == "BranchingBlocks";
  return has_second_shards || (configuration.splits_parameters() && has_branches);
}

}  // namespace tessera::internal::testing
