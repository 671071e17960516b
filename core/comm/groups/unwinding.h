#pragma once

#include <exception>

#include "tessera/errors.h"

namespace tessera::internal {

/// Member of a group. Tells the group's destructor whether an error of this rank alone unwinds the
/// stack; the peers, which do not know of it, must then be told.
class Unwinding {
 public:
  bool is_by_own_error() const;

 private:
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

/// While one lives, an ErrorOnAllRanks of this thread may destroy groups without telling the peers:
/// all ranks leave them in the same call, and the world can be used again. For code that ends with
/// the first such error. Scopes of a thread nest.
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
