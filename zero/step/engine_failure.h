#pragma once

#include <optional>
#include <string>

#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Why an engine cannot be used. There are two kinds of reasons: a failure (the first failed
/// collective, or the error that made this rank stop), which every later call throws again; and
/// inconsistent parameters, which a load of a state repairs.
class EngineFailure {
 public:
  /// `group`, the engine's, must outlive it.
  explicit EngineFailure(ProcessGroup& group) : group_(group) {}

  /// Throws if the engine cannot be used: CommError for a failure, c10::Error for inconsistent
  /// parameters.
  void require_none() const;
  /// Throws CommError if there is a failure. Lets inconsistent parameters pass, because loading a
  /// state repairs them.
  void require_all_ranks() const;

  /// Records that the parameters are inconsistent, which every rank knows, and throws. `what` is
  /// the reason.
  [[noreturn]] void mark_inconsistent(std::string what);
  /// Notes that the parameters are consistent again.
  void mark_consistent() { inconsistency_.clear(); }

  /// Records that this rank cannot go on for a reason that its peers do not know, and aborts the
  /// group with the cause "rank 2 <what>".
  void set(const std::string& what) noexcept;
  void set(const CommError& error) noexcept;
  /// Runs collective code whose errors all ranks throw alike. A failed collective (CommError) ends
  /// the engine.
  template <typename Body>
  auto guard(Body&& body) {
    try {
      return body();
    } catch (const CommError& error) {
      set(error);
      throw;
    }
  }

  /// Runs code that this rank must finish because the others wait for it. Any exception except
  /// ErrorOnAllRanks, which all ranks throw, ends the engine on all ranks at once, with the cause
  /// "rank 2 left <where> by an exception<when>: <text>".
  template <typename Body>
  auto abort_all_on_exception(const char* where, Body&& body, const char* when = "") {
    try {
      return body();
    } catch (const CommError& error) {
      set(error);
      throw;
    } catch (const ErrorOnAllRanks&) {
      throw;
    } catch (...) {
      set_present(where, when);
      throw;
    }
  }

 private:
  void set_present(const char* where, const char* when) noexcept;

  ProcessGroup& group_;
  std::optional<CommError> failure_;
  std::string inconsistency_;  // why parameters are inconsistent; "" if they are not
};

}  // namespace tessera::internal
