#include "tessera/zero/engine/average_in_use.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/errors.h"
#include "tessera/zero/parameters/shown_average.h"

namespace tessera::internal {

// Note [Inside an average]
// From begin_average() to its scope's end() every parameter shows the average. Calls that would
// take the shown values for the run's own are refused: steps, state, writes, a backward. A scope
// that was dropped (by an exception in an evaluation, perhaps on one rank only) cannot communicate,
// so the next collective call ends the average. Ranks may differ in that call and in whether they
// dropped the scope. So every collective call inside a scope begins with one exchange in which
// every rank says whether it is still inside. Then all ranks end the average, or all stay inside,
// or all throw the same error.

AverageInUse::~AverageInUse() {
  if (open_ != nullptr) open_->end = nullptr;
}

Engine::AverageScope AverageInUse::begin(int64_t steps, std::function<void()> end) {
  FlatAverage* const average = trained_.average.get();
  TORCH_CHECK(average != nullptr,
              "[engine] begin_average: the engine keeps no average of the weights; set "
              "Options::average");
  TORCH_CHECK(average->updates() > 0, "[engine] begin_average: got an average of no step after ",
              steps, " steps, expected at least one; the first is step ",
              average->setting().start_step, " (Options::average), call it later");
  const at::NoGradGuard no_grad;
  context_.failure.abort_all_on_exception("begin_average", [&] {
    trained_.settle();
    trained_.access.require_unwritten("begin_average");
    ShownAverage(context_.parts.table, context_.parts.plan, trained_.store, *average).show();
  });
  open_ = std::make_shared<OpenAverage>(OpenAverage{.end = std::move(end)});
  return Engine::AverageScope(open_);
}

/// Returns which parameter was written while it showed the average, and what to do; "" if none was.
/// Local; no rank may write shards meanwhile.
std::string AverageInUse::find_write() const {
  const FlatParameters::Finding finding = trained_.store.inspect();
  if (finding.violation != FlatParameters::Violation::kWritten) return "";
  return absl::StrCat("parameter '", context_.parts.table[finding.parameter].name,
                      "' was written inside begin_average(), where values only show the average; "
                      "engine->load_state_dict() an earlier state");
}

void AverageInUse::leave(const char* call, Inside inside) {
  if (open_ == nullptr) return;
  context_.streams.pass();
  const bool ends = open_->is_dropped || inside == Inside::kEnds;
  const at::NoGradGuard no_grad;
  std::string damage;
  context_.failure.abort_all_on_exception(call, [&] {
    trained_.settle();
    const std::string written = ends ? find_write() : "";
    // An answer is the problem if the average ended now, or "", after a letter that says whether
    // this rank can stay inside.
    const bool can_stay = !ends && inside == Inside::kAllowed;
    std::vector<std::string> answers = context_.group.all_gather_bytes(
        absl::StrCat(
            can_stay ? "s" : "e",
            ends ? trained_.access.open_scope_problem("the end of begin_average()'s scope")
                 : absl::StrCat(call,
                                ": called inside begin_average(), where the model is the average "
                                "of its weights; call end() of its scope first")),
        "inside begin_average");
    const bool all_stay = std::all_of(answers.begin(), answers.end(),
                                      [](const auto& text) { return text.starts_with('s'); });
    if (all_stay) return;
    for (std::string& text : answers) text.erase(0, 1);
    if (std::string text = refusal_text(answers, "engine"); !text.empty()) {
      throw ErrorOnAllRanks(std::move(text));
    }
    ShownAverage(context_.parts.table, context_.parts.plan, trained_.store, *trained_.average)
        .hide();
    // The scope may outlive the engine; its end() then does nothing.
    std::exchange(open_, nullptr)->end = [] {};
    damage =
        refusal_text(context_.group.all_gather_bytes(written, "end of begin_average"), "engine");
  });
  if (!damage.empty()) context_.failure.mark_inconsistent(std::move(damage));
}

}  // namespace tessera::internal
