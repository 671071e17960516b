#include "tessera/zero/engine/sharded_engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/core/StreamGuard.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/reduce/hooked_communicator.h"
#include "tessera/zero/engine/running_call.h"
#include "tessera/zero/parameters/shown_average.h"

namespace tessera::internal {

// Note [The step is a fence]
// Parameters change only in step(), modify_parameters(), load_state_dict() and read_state(), and at
// the begin and the end of an average; between these calls no rank changes a byte that another may
// read. step() first finishes every reduction, then votes; ranks write only after a unanimous vote.
// A rank that finds an error (a parameter written outside modify_parameters(), an open scope, no
// backward, a non-finite gradient) puts it into its report instead of throwing, so that all ranks
// throw together and none is left waiting. If a rank throws anyway (out of memory, say), the engine
// fails on all ranks: EngineFailure::abort_all_on_exception().

ShardedEngine::ShardedEngine(Parts parts, Lasting& lasting, Values brought)
    : parts_(std::move(parts)),
      lasting_(lasting),
      failure_(*parts_.group),
      streams_(parts_.group->device()),
      slices_(parts_.options.degrees, parts_.group->size(), parts_.group->rank()),
      compute_(lasting.trace.get()),
      times_(parts_.group->can().completes_on_host),
      watch_(*this),
      store_(
          *parts_.group, parts_.table, parts_.plan, slices_, parts_.options,
          [this] { return watch_.is_inside_backward(); },
          parts_.group->can().completes_on_host ? nullptr : &streams_, lasting.meter,
          lasting.trace.get(), brought),
      average_(make_average(parts_.options, store_, *parts_.group)),
      commit_(make_step_commit({.group = *parts_.group,
                                .table = parts_.table,
                                .plan = parts_.plan,
                                .slices = slices_,
                                .options = parts_.options,
                                .store = store_,
                                .failure = failure_,
                                .meter = lasting.meter,
                                .trace = lasting.trace.get(),
                                .average = average_.get()},
                               parts_.optimizer, parts_.group_of)),
      early_update_(commit_->update_in_backward()),
      weight_(*parts_.group, parts_.plan),
      reducer_(*parts_.group, parts_.table, parts_.plan, slices_, reducer_setting(), lasting.meter,
               history_, lasting.trace.get()),
      handles_(parts_.table, reducer_.gradient_views()),
      access_(*parts_.group, parts_.table, parts_.plan, store_),
      misuse_(parts_.table, store_, access_, handles_, commit_->optimizer(), early_update_),
      registration_(*lasting.model, parts_.table, parts_.options),
      buffers_(SyncedBuffers::make(*parts_.group, lasting.buffers, parts_.options.buffers)),
      state_(parts_.table, parts_.plan, slices_, lasting.buffers, commit_->optimizer(),
             store_.masters(), store_.flat(), average_.get(), &lasting.comm_hook),
      state_transfer_(*parts_.group, state_),
      streamed_state_(*parts_.group, state_),
      micro_batches_(parts_.options.reproducible, parts_.group->rank(), parts_.group->size(),
                     lasting.micro_batches) {
  lasting.meter.add(optimizer_class(), optimizer_bytes());
  lasting.meter.add(MemoryClass::kControl, control_bytes());
  commit_->optimizer().groups().show_in(*lasting.optimizer);
  lasting.comm_hook.prepare(parts_.table, parts_.plan, commit_->has_loss_scale(), lasting.meter);
  if (parts_.options.cuda_graphs) {
    captured_ = std::make_unique<CapturedMicroSteps>(parts_.group->device());
  }
  // See Note [Backward in a capture].
  const c10::OptionalStreamGuard on_stream(
      captured_ == nullptr ? std::nullopt : std::optional(captured_->stream()));
  for (size_t i = 0; i < parts_.table.size(); ++i) {
    if (!parts_.table[i].is_trainable) continue;
    GradientSink& sink = *this;
    hooks_.push_back(std::make_unique<GradientHook>(parts_.table[i].tensor, i, sink));
  }
  compute_.begin();
  times_.begin_step();
}

ShardedEngine::~ShardedEngine() {
  handles_.hide_all();
  if (open_average_ != nullptr) open_average_->engine = nullptr;
  end_join();
  lasting_.meter.remove(optimizer_class(), optimizer_bytes());
  lasting_.meter.remove(MemoryClass::kControl, control_bytes());
}

int64_t ShardedEngine::control_bytes() const {
  return commit_->bytes() + access_.bytes() + weight_.bytes() +
         (buffers_ != nullptr ? buffers_->bytes() : 0);
}

/// Of the optimizer's states and the average.
int64_t ShardedEngine::optimizer_bytes() const {
  return commit_->optimizer().state_bytes() + (average_ != nullptr ? average_->bytes() : 0);
}

MemoryClass ShardedEngine::optimizer_class() const {
  return parts_.options.offload == Offload::kNone ? MemoryClass::kOptimizer : MemoryClass::kHost;
}

Reducer::Setting ShardedEngine::reducer_setting() {
  using Agreement = Reducer::Setting::Agreement;
  return {.on_release = parts_.options.poison_freed ? BufferPool::OnRelease::kPoison
                                                    : BufferPool::OnRelease::kKeep,
          .divisor = parts_.options.gradient_divisor,
          .observer = commit_->observer(),
          .make_communicator =
              [this](ProcessGroup& group, const SliceMap& slices, MemoryMeter&) {
                const SumOrder order =
                    is_any_world_size() ? SumOrder::kBinaryTree : SumOrder::kRanks;
                return std::make_unique<HookedCommunicator>(
                    std::make_unique<MeanOverRanks>(group, slices, order), group, parts_.table,
                    parts_.plan.trainable_size(), lasting_.comm_hook);
              },
          .agreement = commit_->is_late() ? Agreement::kInStep : Agreement::kInBackward,
          .learns_order = parts_.options.reorder_reductions,
          .units_in_reduction = parts_.options.units_in_reduction,
          .times = &times_};
}

/// Why most calls may not be made here; "" if they may.
std::string ShardedEngine::misplaced() const {
  if (lasting_.comm_hook.is_running()) {
    return "called inside the communication hook; call it after backward has returned";
  }
  if (watch_.is_backward_running() || in_micro_step_) {
    return "called inside backward; call it after backward has returned";
  }
  if (access_.is_writing()) {
    return "called inside modify_parameters, whose function only writes parameters; call it "
           "afterwards";
  }
  if (lasting_.running != nullptr) {
    return absl::StrCat("called inside ", lasting_.running,
                        ", by a function that was given to the engine; call it afterwards");
  }
  return "";
}

void ShardedEngine::require_outside_backward(const char* call) const {
  const std::string problem = misplaced();
  TORCH_CHECK(problem.empty(), "[engine] ", call, ": ", problem);
}

/// See Note [Failed gathers].
void ShardedEngine::take_failed_gather() {
  if (const std::optional<CommError> failed = store_.failed_gather()) failure_.set(*failed);
}

void ShardedEngine::require_usable() {
  take_failed_gather();
  failure_.require_none();
}

/// For calls that read or write parameters, or drop gradients.
void ShardedEngine::require_no_update(const char* call) {
  require_usable();
  if (early_update_ != nullptr) early_update_->require_committed(call);
}

void ShardedEngine::require_between_steps(const char* call) {
  streams_.pass();
  require_no_update(call);
  require_outside_backward(call);
}

// --- Step ---

/// Ends what steps and operators have left under way: after it no rank writes or reads parameters
/// of its own accord.
void ShardedEngine::settle() {
  store_.finish();
  store_.free_all();
}

/// A step that is refused late has taken its history along, and what came after it. One that is
/// refused at once leaves the rates of the one before.
template <typename Body>
auto ShardedEngine::guard_late(Body&& body) {
  try {
    return body();
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error&) {
    if (commit_->is_late()) {
      history_at_step_ = history_agreed_;
      clear();
    } else if (!is_updated()) {
      lasting_.schedule.take_back(commit_->optimizer().groups());
    }
    throw;
  }
}

StepResult ShardedEngine::step() {
  require_usable();
  require_outside_backward("step");
  const RunningCall running(lasting_.running, "step");
  if (!is_following_) announce(Announcements::Call::kStep, "step");
  leave_average("step", InAverage::kRefused);
  const at::NoGradGuard no_grad;
  times_.begin_update();
  streams_.pass();
  written_.clear();
  learn_outcome();  // before this step's report is written
  if (!is_updated()) apply_schedule();
  if (!is_updated()) failure_.guard([&] { take_hyper_parameters(); });
  return lasting_.last_result = failure_.guard([&] {
    failure_.abort_all_on_exception("step()", [&] {
      settle();
      if (!is_updated()) adopt_cleared_gradients();
    });
    reduce_in_step();
    StepVote::RankReport mine = failure_.abort_all_on_exception("step()", [&] {
      reducer_.finish();
      StepVote::RankReport report = rank_report(find_misuse());
      // Sent beside the vote; buffers change only after it.
      if (buffers_ != nullptr) buffers_->start(ranks_with_batches());
      return report;
    });

    const std::optional<StepCommit::Outcome> outcome =
        guard_late([&] { return commit_->commit(reducer_, std::move(mine)); });
    return failure_.abort_all_on_exception(
        "step()",
        [&] {
          if (buffers_ != nullptr) buffers_->finish();
          return begin_next_step(outcome);
        },
        StepCommit::kAfterVote);
  });
}

/// Behind one that all ranks have agreed to, or under asynchronous steps handed in.
StepResult ShardedEngine::begin_next_step(const std::optional<StepCommit::Outcome>& outcome) {
  history_agreed_ = history_at_step_;
  const double weight = weight_.sum().value_or(0.0);
  if (commit_->is_late() || outcome->committed) {
    history_.record(RollingHash::Event::kStep, steps_);
    history_at_step_ = history_;
  }
  last_step_.used = reducer_.used();
  last_step_.reductions = std::max(reductions_, 1);
  times_.end_step();
  clear();
  ++steps_here_;
  if (parts_.options.keep_freed_memory) huge_page_pace_.after_step();
  if (!outcome.has_value()) return lasting_.last_result;
  StepResult result = result_of(*outcome);
  result.weight = weight;
  return result;
}

/// Under asynchronous steps: waits for what became of the last step.
void ShardedEngine::learn_outcome() {
  failure_.guard([&] {
    const std::optional<StepCommit::Outcome> outcome = guard_late([&] { return commit_->wait(); });
    if (!outcome.has_value()) return;
    lasting_.last_result = result_of(*outcome);
    history_agreed_ = history_at_step_;
  });
}

void ShardedEngine::set_schedule(Engine::Schedule rate) {
  require_between_steps("set_schedule");
  lasting_.schedule.set(std::move(rate));
}

/// Before ranks compare their hyper-parameters, and once it is known how many updates there were.
void ShardedEngine::apply_schedule() {
  schedule_problem_ = lasting_.schedule.apply(steps_, commit_->optimizer().groups());
}

/// Counts a step whose outcome has become known.
StepResult ShardedEngine::result_of(const StepCommit::Outcome& outcome) {
  if (outcome.committed) ++steps_;
  return {.committed = outcome.committed,
          .step = steps_,
          .grad_norm = outcome.grad_norm,
          .loss_scale = outcome.loss_scale,
          .used_parameters = outcome.used_parameters};
}

StepVote::RankReport ShardedEngine::rank_report(std::string misuse) {
  StepVote::RankReport rank_report;
  rank_report.step = steps_ + 1;
  rank_report.backwards = backwards_;
  rank_report.history = history_.value();
  if (store_.gathered() != nullptr) rank_report.gathers = store_.gathered()->history();
  rank_report.gradient_edits = handles_.count_edits();
  rank_report.loss_scale = loss_scale();
  rank_report.weight = weight_.sum();
  rank_report.divisor = weight_.divisor();
  rank_report.misuse = std::move(misuse);
  if (is_updated()) {
    rank_report.if_refused =
        "What backward has updated takes effect in a step() that all ranks agree to.";
  }
  return rank_report;
}

/// Reduces what no_sync() left on this rank. Peers may have gradients in a backward that gave this
/// rank none; then it takes part with zeros. Where ranks differ it reduces nothing, because peers
/// may have nothing to reduce: they meet in the vote, which refuses their histories.
void ShardedEngine::reduce_in_step() {
  if (reducer_.ranks_differ()) return;
  const bool is_idle = backwards_ == 0 && saw_other_backward_;
  if (!is_idle && !reducer_.has_local()) return;
  handles_.count_edits();
  if (early_update_ != nullptr) agree_to_update();
  if (is_idle) {
    backwards_ = 1;
    micro_batches_.end();
  }
  ++reductions_;
  const bool is_objected = failure_.abort_all_on_exception("step()", [&] {
    reducer_.begin_micro_step(Reducer::Mode::kReduce);
    return finish_reductions(/*objects=*/false);
  });
  if (is_objected) refuse_backward("");
}

/// "" if nothing on this rank speaks against the step.
std::string ShardedEngine::find_misuse() const {
  if (commit_->has_loss_scale() && !was_scaled_ && backwards_ > 0) {
    return "backward was called on a loss without engine->scale(loss), which loss_scale needs";
  }
  if (!weight_.problem().empty()) return weight_.problem();
  if (weight_.sum() == 0.0 && parts_.options.on_non_finite == NonFinite::kStop) {
    return "the weights of this step's backwards are 0 on all ranks, so there is no mean to apply; "
           "engine->zero_grad() drops these gradients, NonFinite::kSkip skips such steps";
  }
  if (!schedule_problem_.empty()) return schedule_problem_;
  std::string misuse = micro_batches_.problem(backwards_);
  if (misuse.empty()) misuse = misuse_.before_step();
  if (misuse.empty() && buffers_ != nullptr) misuse = buffers_->problem();
  return misuse.empty() && !is_updated() ? find_untrained() : misuse;
}

/// At steps 1, 2, 4, 8, ... only: walking a model allocates, and steps do not.
std::string ShardedEngine::find_untrained() const {
  const bool is_due = std::has_single_bit(static_cast<uint64_t>(steps_here_ + 1));
  return is_due ? registration_.untrained() : "";
}

}  // namespace tessera::internal
