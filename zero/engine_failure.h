#pragma once

#include <optional>
#include <string>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/errors.h"

namespace tessera {

/// Why an engine can no longer be used: the first collective that failed, or what made this rank
/// stop taking part. Every later call throws it again.
class EngineFailure {
 public:
  /// `group`, the engine's, must outlive it.
  explicit EngineFailure(ProcessGroup& group) : group_(group) {}

  /// Throws the failure, if there is one.
  void require_none() const;

  /// This rank cannot go on for a reason that its peers do not know: "rank 2 <what>". Tells them.
  void set(const std::string& what) noexcept;
  void set(const CommError& error) noexcept;

  /// Runs collective code; a failed collective ends the engine.
  template <typename Body>
  auto guard(Body&& body) {
    try {
      return body();
    } catch (const CommError& error) {
      set(error);
      throw;
    }
  }

 private:
  ProcessGroup& group_;
  std::optional<CommError> failure_;
};

}  // namespace tessera
