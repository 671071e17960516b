// An engine in a loop in which ranks have different numbers of batches.
#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/zero/engine/batch_norms.h"
#include "tessera/zero/engine/open_join.h"
#include "tessera/zero/engine/sharded_engine.h"

namespace tessera::internal {

// Note [Join]
// A rank whose batches have ended cannot know what the others call next. So inside a loop over
// join() every collective call begins with an announcement: one word of every rank. A rank without
// batches announces that it follows, learns what comes and does it without gradients: the same
// reductions with zeros, the same vote. So all histories stay equal, and nothing else in the engine
// knows of it. The loop is over when nobody announces anything any more. A scope that a rank drops
// before cannot communicate; the next announcement says that it has.
//
// Without weights a step's gradient is the sum over backwards of the mean over the ranks that had a
// batch: the divisor is the mean number of such ranks (StepWeight). Where backward updates, it must
// be known before: gradients are multiplied by N / active as they come.

JoinScope ShardedEngine::begin_join(JoinOptions options) {
  require_between_steps("join");
  enter("join", InAverage::kRefused);
  learn_outcome();
  std::string problem;
  const auto refuse = [&problem](std::string_view text) {
    if (problem.empty())
      problem = absl::StrCat("join: ", absl::string_view(text.data(), text.size()));
  };
  if (open_join_ != nullptr && !open_join_->is_left) refuse("called inside the loop of another");
  if (is_any_world_size()) {
    refuse(
        "got Options::reproducible = kAnyWorldSize, under which all ranks have equally many "
        "batches; leave one of the two out");
  }
  if (commit_->is_late() || captured_ != nullptr) {
    refuse(
        "got asynchronous steps or cuda_graphs, which a rank without batches cannot follow; set "
        "Options::asynchronous_step and cuda_graphs to false");
  }
  if (store_.gathered() != nullptr && !parts_.group->can().one_sided_reads) {
    refuse(
        "got split parameters that ranks gather together, which a rank without batches cannot "
        "follow; use zero1 or zero2, or give all ranks equally many batches");
  }
  if (!options.throws_when_one_ends) {
    const std::string name = first_sync_batch_norm(*lasting_.model);
    if (!name.empty()) {
      refuse(absl::StrCat("got a model with the SyncBatchNorm '", name,
                          "', whose statistics a rank without batches cannot give; use BatchNorm "
                          "with Options::buffers, or set throws_when_one_ends"));
    }
  }
  if (options.divide == JoinOptions::Divide::kByActive && lasting_.comm_hook.carries_gradients()) {
    refuse(absl::StrCat("got Divide::kByActive beside the communication hook '",
                        lasting_.comm_hook.hook()->name(),
                        "', which carries errors from steps of all ranks into steps of fewer; "
                        "divide by kByWorld, or turn its error feedback off"));
  }
  const bool by_active = options.divide == JoinOptions::Divide::kByActive;
  failure_.guard([&] {
    refuse_on_all_ranks(*parts_.group, problem, "engine");
    require_equal(*parts_.group,
                  {by_active ? "divided by active ranks" : "divided by all ranks",
                   options.throws_when_one_ends ? "throws when one ends" : "goes on when one ends"},
                  "join");
  });
  if (open_join_ != nullptr) end_join();
  open_join_ = std::make_shared<OpenJoin>(OpenJoin{.engine = this, .options = std::move(options)});
  announcements_.emplace(*parts_.group);
  hyper_parameters_.emplace(
      *parts_.group,
      std::max<int64_t>(
          1, static_cast<int64_t>(commit_->optimizer().groups().hyper_parameters().size())));
  weight_.divide_by_active(by_active && early_update_ == nullptr);
  lasting_.meter.add(MemoryClass::kControl, announcements_->bytes() + hyper_parameters_->bytes());
  return JoinScope(open_join_);
}

void ShardedEngine::end_join() {
  if (open_join_ == nullptr) return;
  open_join_->engine = nullptr;
  open_join_.reset();
  lasting_.meter.remove(MemoryClass::kControl,
                        announcements_->bytes() + hyper_parameters_->bytes());
  announcements_.reset();
  hyper_parameters_.reset();
  weight_.divide_by_active(false);
}

/// Collective inside a join(): says what this rank calls, and learns what the others do.
Announcements::Call ShardedEngine::announce(Announcements::Call mine, const char* name,
                                            bool is_weighted) {
  if (open_join_ == nullptr) return mine;
  const Announcements::Call call = failure_.guard([&] {
    return announcements_->exchange(
        {.call = mine, .name = name, .is_weighted = is_weighted, .has_left = open_join_->is_left},
        open_join_->options.throws_when_one_ends);
  });
  if (announcements_->all_left()) end_join();
  return call;
}

/// All of them outside a loop.
SyncedBuffers::Ranks ShardedEngine::ranks_with_batches() const {
  if (open_join_ == nullptr) return {.first = 0, .count = parts_.group->size(), .has_mine = true};
  return {announcements_->lowest_active(), announcements_->active(),
          announcements_->is_active(parts_.group->rank())};
}

/// Collective, where some ranks follow others: those take the hyper-parameters in force on the
/// lowest of these.
void ShardedEngine::take_hyper_parameters() {
  if (open_join_ == nullptr || announcements_->active() == parts_.group->size()) return;
  ParameterGroups& groups = commit_->optimizer().groups();
  std::vector<double> values;
  for (const HyperParameter& one : groups.hyper_parameters()) values.push_back(one.value);
  const std::span<int64_t> mine = hyper_parameters_->mine();
  for (size_t i = 0; i < values.size(); ++i) mine[i] = std::bit_cast<int64_t>(values[i]);
  hyper_parameters_->exchange("hyper-parameters in a loop over join()");
  if (announcements_->is_active(parts_.group->rank())) return;
  const std::span<const int64_t> theirs = hyper_parameters_->of(announcements_->lowest_active());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<double>(theirs[i]);
  if (groups.problems_of(values).empty()) groups.set_hyper_parameters(values);
}

void ShardedEngine::follow() {
  using Call = Announcements::Call;
  require_usable();
  require_outside_backward("join");
  const at::NoGradGuard no_grad;
  while (open_join_ != nullptr) {
    const Call call = announce(Call::kFollow, "join");
    if (open_join_ == nullptr) return;
    is_following_ = true;
    const auto stop = c10::make_scope_exit([this] { is_following_ = false; });
    switch (call) {
      case Call::kFollow:
        failure_.guard([&] { take_hyper_parameters(); });
        return end_join();
      case Call::kAccumulate:
        failure_.guard([&] { refuse_on_all_ranks(*parts_.group, "", "accumulate"); });
        [[fallthrough]];
      case Call::kMicroStep:
        follow_micro_step();
        break;
      case Call::kLocalMicroStep: {
        const Engine::NoSync scope = no_sync();
        follow_micro_step();
        break;
      }
      case Call::kStep:
        step();
        if (open_join_->options.on_step) open_join_->options.on_step();
        break;
      case Call::kZeroGrad:
        zero_grad();
        break;
      case Call::kOther:
        TORCH_INTERNAL_ASSERT(false, "all ranks refuse it");
    }
  }
}

void ShardedEngine::follow_micro_step() {
  was_scaled_ = true;
  streams_.pass();
  failure_.guard([&] { begin_micro_step(); });
  end_micro_step();
}

}  // namespace tessera::internal
