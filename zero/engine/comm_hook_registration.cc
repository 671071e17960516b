#include "tessera/zero/engine/comm_hook_registration.h"

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/options/option_table.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {
namespace {

/// Prepares `hook` and returns why this rank cannot use it; "" if it can.
std::string problem_of_hook(const EngineContext& context, const TrainedParameters& trained,
                            CommHook* hook) {
  const RegisteredHook& registered = context.persistent.comm_hook;
  const ResolvedOptions& options = context.parts.options;
  if (hook == nullptr) {
    return "register_comm_hook: got null, expected a hook; pass one (tessera/comm_hook.h)";
  }
  if (registered.hook() != nullptr) {
    return absl::StrCat("register_comm_hook: got '", hook->name(), "', but '",
                        registered.hook()->name(),
                        "' is registered; register_comm_hook can only be called once");
  }
  if (registered.had_backward()) {
    return absl::StrCat("register_comm_hook: got '", hook->name(),
                        "' after a backward, expected it before the first; call it after "
                        "parallelize");
  }
  if (std::string problem = option_against("register_comm_hook", options); !problem.empty()) {
    return problem;
  }
  if (const int split = options.degrees.gradients; split > 1) {
    const std::string_view strategy = to_string(options.strategy);
    return absl::StrCat("register_comm_hook: '", hook->name(), "': got strategy ",
                        std::string(strategy), ", which splits gradients over ", split,
                        " ranks, expected one under which each rank has them whole; use ddp, zero1 "
                        "or a hybrid with one degree for gradients");
  }
  if (!context.group.can().completes_on_host || !context.group.device().is_cpu()) {
    return absl::StrCat("register_comm_hook: '", hook->name(), "': got gradients on ",
                        context.group.device().str(), ", expected cpu; train without a hook there");
  }
  try {
    RegisteredHook::try_out(*hook, context.parts.table, context.parts.plan,
                            trained.applier->has_loss_scale());
  } catch (...) {
    return absl::StrCat("register_comm_hook: '", hook->name(), "': ", present_error_text());
  }
  return "";
}

}  // namespace

void register_comm_hook(EngineContext& context, const TrainedParameters& trained,
                        std::shared_ptr<CommHook> hook) {
  const std::string problem = problem_of_hook(context, trained, hook.get());
  context.failure.guard([&] {
    refuse_on_all_ranks(context.group, problem, "comm hook");
    require_equal(context.group, {hook->name(), hook->settings()}, "register_comm_hook");
  });
  context.persistent.comm_hook.accept(std::move(hook), context.persistent.meter);
}

}  // namespace tessera::internal
