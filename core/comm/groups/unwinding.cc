#include "tessera/core/comm/groups/unwinding.h"

namespace tessera::internal {
namespace {

thread_local CommonErrorScope* innermost = nullptr;

}  // namespace

bool Unwinding::is_by_own_error() const {
  const bool is_common = innermost != nullptr && innermost->has_error_;
  return std::uncaught_exceptions() > uncaught_at_start_ && !is_common;
}

CommonErrorScope::CommonErrorScope() : outer_(innermost) { innermost = this; }

CommonErrorScope::~CommonErrorScope() { innermost = outer_; }

void CommonErrorScope::note_error() {
  if (innermost != nullptr) innermost->has_error_ = true;
}

}  // namespace tessera::internal
