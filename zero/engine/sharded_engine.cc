#include "tessera/zero/engine/sharded_engine.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

std::string ShardedEngine::misplaced() const {
  if (context.persistent.comm_hook.is_running()) {
    return "called inside the communication hook; call it after backward has returned";
  }
  if (backward.is_running()) {
    return "called inside backward; call it after backward has returned";
  }
  if (trained.access.is_writing()) {
    return "called inside modify_parameters, whose function only writes parameters; call it "
           "afterwards";
  }
  if (context.persistent.running != nullptr) {
    return absl::StrCat("called inside ", context.persistent.running,
                        ", by a function that was given to the engine; call it afterwards");
  }
  return "";
}

void ShardedEngine::require_outside_backward(const char* call) const {
  const std::string problem = misplaced();
  TORCH_CHECK(problem.empty(), "[engine] ", call, ": ", problem);
}

/// If a unit could not be gathered, that becomes the failure of the engine. See Note [Failed
/// gathers] in backward.cc.
void ShardedEngine::take_failed_gather() {
  if (const auto failed = trained.store.failed_gather()) context.failure.set(*failed);
}

void ShardedEngine::require_usable() {
  take_failed_gather();
  context.failure.require_none();
}

void ShardedEngine::require_loadable() {
  context.streams.pass();
  take_failed_gather();
  context.failure.require_all_ranks();
}

void ShardedEngine::require_no_update(const char* call) {
  require_usable();
  if (trained.early_update != nullptr) trained.early_update->require_committed(call);
}

void ShardedEngine::require_between_steps(const char* call) {
  context.streams.pass();
  require_no_update(call);
  require_outside_backward(call);
}

}  // namespace tessera::internal
