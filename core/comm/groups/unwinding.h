#pragma once

#include <chrono>
#include <exception>
#include <optional>

#include "tessera/errors.h"

namespace tessera::internal {

/// Data member of a group. Tells the group's destructor whether an error of this rank alone unwinds
/// the stack. The destructor must then tell the peers, which do not know the error.
class Unwinding {
 public:
  Unwinding();
  bool is_by_own_error() const;

  /// Returns the time at which is_by_own_error() first returned true on the calling thread since
  /// the thread last made a group; nullopt if it has not returned true since then. Failures of
  /// ranks are ordered by this time, because no peer can know the error before then. The exception
  /// itself may leave the program's code much later, after peers have failed because of the error.
  static std::optional<std::chrono::steady_clock::time_point> began();

 private:
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

/// While an object of this class lives, an ErrorOnAllRanks that this thread throws may destroy
/// groups as it unwinds the stack. These groups do not tell their peers, because all ranks leave
/// them in the same call, so the world can be used again. Only for code that ends with the first
/// such error. Scopes of one thread nest.
class CommonErrorScope {
 public:
  CommonErrorScope();
  ~CommonErrorScope();
  CommonErrorScope(const CommonErrorScope&) = delete;
  CommonErrorScope& operator=(const CommonErrorScope&) = delete;

 private:
  friend class Unwinding;
  friend class tessera::ErrorOnAllRanks;

  CommonErrorScope* const outer_;
  bool has_error_ = false;  // an ErrorOnAllRanks was constructed in this scope
};

}  // namespace tessera::internal
