#include "tessera/zero/engine/call_rules.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

std::string CallRules::misplaced() const {
  if (context_.lasting.comm_hook.is_running()) {
    return "called inside the communication hook; call it after backward has returned";
  }
  if (backward_.is_running()) {
    return "called inside backward; call it after backward has returned";
  }
  if (trained_.access.is_writing()) {
    return "called inside modify_parameters, whose function only writes parameters; call it "
           "afterwards";
  }
  if (context_.lasting.running != nullptr) {
    return absl::StrCat("called inside ", context_.lasting.running,
                        ", by a function that was given to the engine; call it afterwards");
  }
  return "";
}

void CallRules::require_outside_backward(const char* call) const {
  const std::string problem = misplaced();
  TORCH_CHECK(problem.empty(), "[engine] ", call, ": ", problem);
}

/// See Note [Failed gathers] in backward.cc.
void CallRules::take_failed_gather() const {
  if (const auto failed = trained_.store.failed_gather()) context_.failure.set(*failed);
}

void CallRules::require_usable() const {
  take_failed_gather();
  context_.failure.require_none();
}

void CallRules::require_loadable() const {
  take_failed_gather();
  context_.failure.require_all_ranks();
}

void CallRules::require_no_update(const char* call) const {
  require_usable();
  if (trained_.early_update != nullptr) trained_.early_update->require_committed(call);
}

void CallRules::require_between_steps(const char* call) const {
  context_.streams.pass();
  require_no_update(call);
  require_outside_backward(call);
}

}  // namespace tessera::internal
