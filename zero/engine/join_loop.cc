#include "tessera/zero/engine/join_loop.h"

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/options/option_table.h"
#include "tessera/zero/engine/batch_norms.h"

namespace tessera::internal {

// Note [Join]
// A rank whose batches have ended cannot know what the other ranks call next. So inside a loop over
// join() every collective call begins with an announcement, one word from every rank. A rank
// without batches announces that it follows, receives the other ranks' call and makes it without
// gradients: the same reductions with zeros, the same vote. So all histories stay equal, and
// nothing else in the engine knows of the loop. The loop ends when no rank has batches left. If a
// rank drops its JoinScope before that, the scope cannot communicate, so the rank's next
// announcement says that it has left.
//
// Under Divide::kByActive and without weights, the gradients of a step are summed over backwards
// and ranks. The sum is divided by the mean over backwards of the number of ranks that had a batch
// (StepWeight). Where backward updates, the divisor must be known earlier, so each gradient is
// multiplied by N / (the number of ranks with batches) when it arrives.

/// Returns why ranks cannot follow others in this engine; "" if they can.
std::string JoinLoop::problem_of(const JoinOptions& options) const {
  const RegisteredHook& hook = context_.persistent.comm_hook;
  if (open_ != nullptr && !open_->is_left) return "join: called inside the loop of another";
  if (std::string problem = option_against("join", context_.parts.options); !problem.empty()) {
    return problem;
  }
  if (trained_.store.gathered() != nullptr && !context_.group.can().one_sided_reads) {
    return "join: got split parameters that ranks gather together, which a rank without batches "
           "cannot "
           "follow; use zero1 or zero2, or give all ranks equally many batches";
  }
  if (!options.throws_when_one_ends) {
    const std::string name = first_sync_batch_norm(*context_.persistent.model);
    if (!name.empty()) {
      return absl::StrCat("join: got a model with the SyncBatchNorm '", name,
                          "', whose statistics a rank without batches cannot give; use BatchNorm "
                          "with Options::buffers, or set throws_when_one_ends");
    }
  }
  if (options.divide == JoinOptions::Divide::kByActive && hook.carries_gradients()) {
    return absl::StrCat("join: got Divide::kByActive beside the communication hook '",
                        hook.hook()->name(),
                        "', which carries errors from steps of all ranks into steps of fewer; "
                        "divide by kByWorld, or turn its error feedback off");
  }
  return "";
}

JoinScope JoinLoop::begin(JoinOptions options, std::function<void()> follow) {
  const bool by_active = options.divide == JoinOptions::Divide::kByActive;
  const std::string problem = problem_of(options);
  context_.failure.guard([&] {
    refuse_on_all_ranks(context_.group, problem, "engine");
    require_equal(context_.group,
                  {by_active ? "divided by active ranks" : "divided by all ranks",
                   options.throws_when_one_ends ? "throws when one ends" : "goes on when one ends"},
                  "join");
  });
  end();
  protocol_.emplace(context_.group);
  const size_t words = trained_.optimizer().groups().hyper_parameters().size();
  hyper_parameters_.emplace(context_.group, std::max<int64_t>(1, static_cast<int64_t>(words)));
  open_ = std::make_shared<OpenJoin>(
      OpenJoin{.follow = std::move(follow), .options = std::move(options)});
  weight_.divide_by_active(by_active && trained_.early_update == nullptr);
  context_.persistent.meter.add(MemoryClass::kControl, bytes());
  return JoinScope(open_);
}

void JoinLoop::end() {
  if (open_ == nullptr) return;
  open_->follow = nullptr;
  open_.reset();
  context_.persistent.meter.remove(MemoryClass::kControl, bytes());
  protocol_.reset();
  hyper_parameters_.reset();
  weight_.divide_by_active(false);
}

JoinProtocol::Call JoinLoop::announce(JoinProtocol::Call mine, const char* name, bool is_weighted) {
  if (open_ == nullptr || is_following_) return mine;
  const JoinProtocol::Call call = context_.failure.guard([&] {
    return protocol_->exchange(
        {.call = mine, .name = name, .is_weighted = is_weighted, .has_left = open_->is_left},
        open_->options.throws_when_one_ends);
  });
  if (protocol_->all_left()) end();
  return call;
}

void JoinLoop::follow(const std::function<void(JoinProtocol::Call)>& make) {
  using Call = JoinProtocol::Call;
  while (open_ != nullptr) {
    const Call call = announce(Call::kFollow, "join");
    if (open_ == nullptr) return;
    if (call == Call::kFollow) {  // no rank has batches left
      context_.failure.guard([&] { take_hyper_parameters(); });
      return end();
    }
    TORCH_INTERNAL_ASSERT(call != Call::kOther, "all ranks refuse it");
    {
      is_following_ = true;
      const auto stop = c10::make_scope_exit([this] { is_following_ = false; });
      make(call);
    }
    // on_step() may call the engine, so is_following_ is false again: calls in it are announced, as
    // the ranks with batches announce theirs after the step.
    if (call == Call::kStep && open_->options.on_step) open_->options.on_step();
  }
}

void JoinLoop::take_hyper_parameters() {
  if (open_ == nullptr || protocol_->active() == context_.group.size()) return;
  ParameterGroups& groups = trained_.optimizer().groups();
  std::vector<double> values;
  for (const HyperParameter& one : groups.hyper_parameters()) values.push_back(one.value);
  const std::span<int64_t> mine = hyper_parameters_->mine();
  for (size_t i = 0; i < values.size(); ++i) mine[i] = std::bit_cast<int64_t>(values[i]);
  hyper_parameters_->exchange("hyper-parameters in a loop over join()");
  if (protocol_->is_active(context_.group.rank())) return;
  const std::span<const int64_t> theirs = hyper_parameters_->of(protocol_->lowest_active());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<double>(theirs[i]);
  if (groups.problems_of(values).empty()) groups.set_hyper_parameters(values);
}

SyncedBuffers::Ranks JoinLoop::ranks_with_batches() const {
  if (open_ == nullptr) return {.first = 0, .count = context_.group.size(), .has_mine = true};
  return {protocol_->lowest_active(), protocol_->active(),
          protocol_->is_active(context_.group.rank())};
}

double JoinLoop::early_factor() const {
  const bool applies = trained_.early_update != nullptr && open_ != nullptr &&
                       open_->options.divide == JoinOptions::Divide::kByActive;
  return applies ? static_cast<double>(context_.group.size()) / protocol_->active() : 1.0;
}

}  // namespace tessera::internal
