#include "tessera/zero/engine_failure.h"

#include <absl/strings/str_cat.h>

namespace tessera {

void EngineFailure::require_none() const {
  if (failure_.has_value()) throw CommError(*failure_);
}

void EngineFailure::set(const std::string& what) noexcept {
  if (failure_.has_value()) return;
  const int rank = group_.rank();
  const std::string cause = absl::StrCat("rank ", rank, " ", what);
  failure_.emplace(CommErrorContext{"engine", std::string(group_.name()), -1, rank, ""}, cause);
  // Peers may wait for reductions that will never come.
  group_.abort(cause);
}

void EngineFailure::set(const CommError& error) noexcept {
  if (!failure_.has_value()) failure_ = error;
}

}  // namespace tessera
