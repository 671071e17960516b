#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// How ranks communicate once they have met: rank 0 opens it, the others enter it.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Whether the ranks must be on one host.
  virtual bool is_local() const = 0;

  /// What the others need to enter: a text, and on one host perhaps a descriptor, which rank 0
  /// keeps open until all have entered.
  struct Opening {
    std::string text;
    int descriptor = -1;
  };
  /// Called by rank 0 once all have come; `pids` by rank.
  virtual absl::StatusOr<Opening> open(const std::vector<int>& pids) = 0;
  /// Called by the others.
  virtual absl::Status enter(const std::string& text, FileDescriptor descriptor) = 0;
};

}  // namespace tessera::internal
