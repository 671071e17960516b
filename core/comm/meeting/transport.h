#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace tessera::internal {

/// How ranks communicate once they have met: rank 0 opens it, the others enter it.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Whether the ranks must be on one host.
  virtual bool is_local() const = 0;

  /// Called by rank 0 once all have come; `pids` by rank. What the others need to enter.
  virtual absl::StatusOr<std::string> open(const std::vector<int>& pids) = 0;
  /// Called by the others.
  virtual absl::Status enter(const std::string& text) = 0;
};

}  // namespace tessera::internal
