#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/nccl/world.h"

namespace tessera::internal::nccl {

/// Why the world fails.
struct World::Cause {
  std::string text;           // "": it does not
  int culprit = -1;           // the rank of the world that began it; negative: this one
  bool is_published = false;  // by another rank
};

/// What the ranks of a group, in order, say of a collective.
struct World::Answers {
  std::vector<Report> reports;
  int asker = -1;
  std::optional<std::string> failure;  // published meanwhile
};

}  // namespace tessera::internal::nccl
