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

  /// Returns when is_by_own_error() first returned true on the calling thread, before the peers
  /// could know the error; nullopt if it has not since the thread last made a group. The exception
  /// may leave the program's code much later, after peers have failed because of it.
  static std::optional<std::chrono::steady_clock::time_point> began();

 private:
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

/// While a scope lives, an ErrorOnAllRanks of this thread may destroy groups without telling the
/// peers, because all ranks leave the groups in the same call. The world can then be used again.
/// For code that ends with the first such error. Scopes of one thread nest.
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
  bool has_error_ = false;  // an ErrorOnAllRanks was made on this thread
};

}  // namespace tessera::internal
