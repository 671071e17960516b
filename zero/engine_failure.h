#pragma once

#include <optional>
#include <string>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/errors.h"

namespace tessera {

/// Why an engine can no longer be used: the first collective that failed, or what made this rank
/// stop taking part. Every later call throws it again. Or why it must load a state first.
class EngineFailure {
 public:
  /// `group`, the engine's, must outlive it.
  explicit EngineFailure(ProcessGroup& group) : group_(group) {}

  /// Throws the failure, if there is one: CommError, or c10::Error where a loaded state mends it.
  void require_none() const;
  /// Throws a failure that no state mends.
  void require_all_ranks() const;

  /// Every rank knows that the parameters are of no step, for the reason `what`. Throws it.
  [[noreturn]] void spoil(std::string what);
  /// The parameters are right again.
  void mend() { spoilt_.clear(); }

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
  std::string spoilt_;  // "": they are not
};

}  // namespace tessera
