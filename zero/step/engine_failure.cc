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
  // Aborts the group, because peers may wait for reductions that will never come. In a world of one
  // nobody waits, and the group stays usable.
  if (group_.size() > 1) group_.abort(cause);
}

void EngineFailure::set_present(const char* where, const char* when) noexcept {
  set(absl::StrCat("left ", where, " by an exception", when, ": ", present_error_text()));
}

void EngineFailure::set(const CommError& error) noexcept {
  if (failure_.has_value()) return;
  failure_ = error;
  // Aborts the engine's group as well, because the error may come from another group.
  group_.abort(error.cause());
}

}  // namespace tessera::internal
