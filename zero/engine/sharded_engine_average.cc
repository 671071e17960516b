// An engine while its model is the average of its weights.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/zero/engine/sharded_engine.h"
#include "tessera/zero/parameters/shown_average.h"

namespace tessera::internal {

// Note [Inside an average]
// From begin_average() to its scope's end() every parameter shows the average. What would use the
// shown values as the run's own is refused: steps, state, writes, a backward. A scope that was
// dropped (an exception in an evaluation, perhaps on one rank only) cannot communicate, so the next
// collective call ends it. Ranks may differ in that call and in whether their scope was dropped, so
// each such call begins with one exchange in which every rank says whether it is still inside: all
// end the average, or all go on inside, or all throw the same error.

Engine::AverageScope ShardedEngine::begin_average() {
  require_between_steps("begin_average");
  enter("begin_average", InAverage::kRefused);
  TORCH_CHECK(average_ != nullptr,
              "[engine] begin_average: the engine keeps no average of the weights; set "
              "Options::average");
  learn_outcome();
  TORCH_CHECK(average_->updates() > 0, "[engine] begin_average: got an average of no step after ",
              steps_, " steps, expected at least one; the first is step ",
              average_->setting().start_step, " (Options::average), call it later");
  const at::NoGradGuard no_grad;
  failure_.abort_all_on_exception("begin_average", [&] {
    settle();
    access_.require_unwritten("begin_average");
    ShownAverage(parts_.table, parts_.plan, store_, *average_).show();
  });
  open_average_ = std::make_shared<OpenAverage>(OpenAverage{.engine = this});
  return Engine::AverageScope(open_average_);
}

void ShardedEngine::end_average() {
  require_between_steps("end");
  enter("end", InAverage::kEnds);
}

/// Why the average cannot be trusted any more; "" if it can. Local; no rank may write shards now.
std::string ShardedEngine::find_write_inside() const {
  const FlatParameters::Finding finding = store_.inspect();
  if (finding.violation != FlatParameters::Violation::kWritten) return "";
  return absl::StrCat("parameter '", parts_.table[finding.parameter].name,
                      "' was written inside begin_average(), where values only show the average; "
                      "engine->load_state_dict() an earlier state");
}

void ShardedEngine::enter(const char* call, InAverage in_average) {
  announce(Announcements::Call::kOther, call);
  leave_average(call, in_average);
}

void ShardedEngine::leave_average(const char* call, InAverage in_average) {
  if (open_average_ == nullptr) return;
  streams_.pass();
  const bool ends = open_average_->is_dropped || in_average == InAverage::kEnds;
  const at::NoGradGuard no_grad;
  std::string damage;
  failure_.abort_all_on_exception(call, [&] {
    settle();
    const std::string written = ends ? find_write_inside() : "";
    const std::vector<std::string> inside = parts_.group->all_gather_bytes(
        ends ? access_.open_scope_problem("the end of begin_average()'s scope")
             : absl::StrCat(call,
                            ": called inside begin_average(), where the model is the average of "
                            "its weights; call end() of its scope first"),
        "inside begin_average");
    const bool all_are_inside =
        std::none_of(inside.begin(), inside.end(), [](const auto& text) { return text.empty(); });
    if (!ends && all_are_inside && in_average == InAverage::kAllowed) return;
    if (std::string text = refusal_text(inside, "engine"); !text.empty()) {
      throw ErrorOnAllRanks(std::move(text));
    }
    ShownAverage(parts_.table, parts_.plan, store_, *average_).hide();
    open_average_.reset();
    damage =
        refusal_text(parts_.group->all_gather_bytes(written, "end of begin_average"), "engine");
  });
  if (!damage.empty()) failure_.mark_inconsistent(std::move(damage));
}

}  // namespace tessera::internal
