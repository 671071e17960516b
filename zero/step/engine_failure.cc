#include "tessera/zero/step/engine_failure.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

void EngineFailure::require_none() const {
  require_all_ranks();
  TORCH_CHECK(inconsistency_.empty(), inconsistency_);
}

void EngineFailure::require_all_ranks() const {
  if (failure_.has_value()) throw CommError(*failure_);
}

void EngineFailure::mark_inconsistent(std::string what) {
  inconsistency_ = std::move(what);
  TORCH_CHECK(false, inconsistency_);
}

void EngineFailure::set(const std::string& what) noexcept {
  if (failure_.has_value()) return;
  const int rank = group_.rank();
  const std::string cause = absl::StrCat("rank ", rank, " ", what);
  failure_.emplace(CommErrorContext{"engine", std::string(group_.name()), -1, rank, ""}, cause);
  // Peers may wait for reductions that will never come. Without peers only this engine ends.
  if (group_.size() > 1) group_.abort(cause);
}

void EngineFailure::set_present(const char* where, const char* when) noexcept {
  set(absl::StrCat("left ", where, " by an exception", when, ": ", present_error_text()));
}

void EngineFailure::set(const CommError& error) noexcept {
  if (failure_.has_value()) return;
  failure_ = error;
  group_.abort(error.cause());  // the error may come from another group
}

}  // namespace tessera::internal
