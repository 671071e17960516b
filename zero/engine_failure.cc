#include "tessera/zero/engine_failure.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera {

void EngineFailure::require_none() const {
  require_all_ranks();
  TORCH_CHECK(spoilt_.empty(), spoilt_);
}

void EngineFailure::require_all_ranks() const {
  if (failure_.has_value()) throw CommError(*failure_);
}

void EngineFailure::spoil(std::string what) {
  spoilt_ = std::move(what);
  TORCH_CHECK(false, spoilt_);
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
