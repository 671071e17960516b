#pragma once

#include <optional>
#include <string>

#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// The reason why an engine cannot be used: the first failed collective, or the error that made
/// this rank stop. Every later call throws it again. Also the reason why the engine must load a
/// state first.
class EngineFailure {
 public:
  /// `group`, the engine's, must outlive it.
  explicit EngineFailure(ProcessGroup& group) : group_(group) {}

  /// Throws the failure, if any: CommError, or c10::Error where loading a state removes it.
  void require_none() const;
  /// Throws a failure that loading a state does not remove.
  void require_all_ranks() const;

  /// Records that the parameters are inconsistent, which every rank knows, and throws. `what` is
  /// the reason.
  [[noreturn]] void mark_inconsistent(std::string what);
  /// Notes that the parameters are consistent again.
  void mark_consistent() { inconsistency_.clear(); }

  /// Notes that this rank cannot go on for a reason that its peers do not know: aborts the group
  /// with the cause "rank 2 <what>".
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
  /// ErrorOnAllRanks, which all ranks throw, ends the engine on all ranks at once: "rank 2 left
  /// <where> by an exception<when>: <text>".
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
  std::string inconsistency_;  // why; "" if they are consistent
};

}  // namespace tessera::internal
