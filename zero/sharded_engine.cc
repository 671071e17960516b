#include "tessera/zero/sharded_engine.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/core/StreamGuard.h>

#include "tessera/core/error_text.h"
#include "tessera/core/memory/freed_memory.h"

namespace tessera {

// Note [The step is a fence]
// Parameters change in step() and modify_parameters() only, and between two of them no rank changes
// a byte that another may read. step() first finishes every reduction, then votes; only a unanimous
// vote lets any rank write. What one rank finds wrong (a parameter written elsewhere, an open
// scope, no backward, a non-finite gradient) it puts on its paper instead of throwing, so that all
// ranks throw together and none is left waiting.

ShardedEngine::ShardedEngine(Parts parts, std::vector<NamedTensor> buffers)
    : parts_(std::move(parts)),
      failure_(*parts_.group),
      streams_(parts_.group->place()),
      slices_(parts_.degrees, parts_.group->size(), parts_.group->rank()),
      trace_(parts_.options.trace ? std::make_unique<Trace>() : nullptr),
      compute_(trace_.get()),
      watch_(*this),
      store_(*parts_.group, parts_.table, parts_.plan, slices_, store_setting(), meter_,
             trace_.get()),
      commit_(make_step_commit({.group = *parts_.group,
                                .table = parts_.table,
                                .plan = parts_.plan,
                                .slices = slices_,
                                .options = parts_.options,
                                .store = store_,
                                .failure = failure_,
                                .meter = meter_,
                                .trace = trace_.get()},
                               parts_.optimizer, parts_.group_of)),
      early_update_(commit_->update_in_backward()),
      reducer_(*parts_.group, parts_.table, parts_.plan, slices_, reducer_setting(), meter_,
               history_, trace_.get()),
      handles_(parts_.table, reducer_.gradient_views()),
      access_(*parts_.group, parts_.table, parts_.plan, store_),
      misuse_(parts_.table, store_, access_, handles_, commit_->optimizer(), early_update_),
      state_(*parts_.group, parts_.table, parts_.plan, slices_, std::move(buffers),
             commit_->optimizer(), store_.masters(), store_.flat()) {
  meter_.add(
      parts_.options.offload == Offload::kNone ? MemoryClass::kOptimizer : MemoryClass::kHost,
      commit_->optimizer().state_bytes());
  meter_.add(MemoryClass::kControl, commit_->bytes() + access_.bytes());
  if (parts_.options.cuda_graphs) {
    captured_ = std::make_unique<CapturedMicroSteps>(parts_.group->place());
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
}

ParameterStore::Setting ShardedEngine::store_setting() {
  ParameterStore::Setting setting = parts_.store;
  setting.gather.is_inside_backward = [this] { return watch_.is_inside_backward(); };
  if (!parts_.group->place().is_cpu()) setting.gather.streams = &streams_;
  return setting;
}

Reducer::Setting ShardedEngine::reducer_setting() const {
  using Agreement = Reducer::Setting::Agreement;
  return {.on_release = parts_.options.poison_freed ? SlabPool::OnRelease::kPoison
                                                    : SlabPool::OnRelease::kKeep,
          .reduced = early_update_,
          .landed = commit_->landed(),
          .kept = commit_->kept(),
          .agreement = commit_->is_late() ? Agreement::kInStep : Agreement::kInBackward};
}

void ShardedEngine::require_outside_backward(const char* call) const {
  TORCH_CHECK(!in_micro_step_ && !watch_.is_inside_backward(), "[engine] ", call,
              ": called inside backward; call it after backward has returned");
}

/// For calls that read or write parameters, or drop gradients.
void ShardedEngine::require_no_update(const char* call) const {
  failure_.require_none();
  if (early_update_ != nullptr) early_update_->require_committed(call);
}

void ShardedEngine::require_between_steps(const char* call) {
  streams_.pass();
  require_no_update(call);
  require_outside_backward(call);
}

// --- Backward ---

void ShardedEngine::before_gradient(size_t index) {
  failure_.require_none();
  TORCH_CHECK(watch_.is_inside_backward(), "[grad] '", parts_.table[index].name,
              "': backward runs on a thread that does not know this engine, so its end would go "
              "unnoticed; call backward on the thread that called parallelize");
  streams_.pass();
  if (!in_micro_step_) failure_.guard([&] { begin_micro_step(); });
  try {
    handles_.hide(index);
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

void ShardedEngine::begin_micro_step() {
  hook_error_.clear();
  if (early_update_ != nullptr) agree_to_update();
  adopt_cleared_gradients();
  handles_.count_edits();
  reducer_.begin_micro_step(*no_sync_depth_ > 0 ? Reducer::Mode::kAddLocally
                                                : Reducer::Mode::kReduce);
  in_micro_step_ = true;
  compute_.end("forward");
}

/// Refuses on all ranks what step() would refuse, while nothing is updated.
void ShardedEngine::agree_to_update() {
  store_.finish();
  StepVote::Paper mine = paper(misuse_.before_updating_backward(*no_sync_depth_ > 0));
  mine.backwards = 1;
  commit_->agree_to_update(mine);
  early_update_->begin();
}

void ShardedEngine::gradient(size_t index, at::Tensor gradient) {
  // A parameter that left its unit may have another shape; the vote will name it.
  if (!store_.flat().lives_here(index)) return;
  try {
    failure_.guard([&] { reducer_.land(index, gradient.detach()); });
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

void ShardedEngine::backward_ended() {
  if (!in_micro_step_) {
    saw_other_backward_ = true;
    return;
  }
  end_micro_step();
}

void ShardedEngine::end_micro_step() {
  streams_.pass();
  in_micro_step_ = false;
  ++backwards_;
  store_.free_all();
  failure_.guard([&] { finish_reductions(); });
  show_gradients();
  compute_.end("backward");
}

void ShardedEngine::finish_reductions() {
  reducer_.end_micro_step();
  if (early_update_ != nullptr) early_update_->finish(reducer_);
}

void ShardedEngine::backward_failed() noexcept {
  if (!in_micro_step_) return;
  in_micro_step_ = false;
  failure_.set(
      hook_error_.empty()
          ? "left backward by an exception, which that rank reports; the gradients of this step "
            "are incomplete and the engine cannot go on"
          : absl::StrCat("left backward by an exception: ", hook_error_));
}

void ShardedEngine::show_gradients() {
  for (size_t i = 0; i < parts_.table.size(); ++i) {
    if (reducer_.local()[i] != 0) {
      handles_.show(i, GradientHandles::Content::kLocal);
    } else if (reducer_.used()[i] != 0) {
      handles_.show(i, GradientHandles::Content::kReduced);
    }
  }
}

void ShardedEngine::adopt_cleared_gradients() {
  const GradientHandles::Cleared cleared = handles_.cleared();
  if (cleared.all) {
    clear();
    return;
  }
  for (const size_t index : cleared.parameters) {
    handles_.forget(index);
    reducer_.drop(index);
    commit_->drop(index);
    history_.record(RollingHash::Event::kDrop, static_cast<int64_t>(index));
  }
}

at::Tensor ShardedEngine::scale(const at::Tensor& loss) {
  was_scaled_ = true;
  return commit_->scale(loss);
}

void ShardedEngine::zero_grad() {
  require_between_steps("zero_grad");
  clear();
}

void ShardedEngine::clear() {
  streams_.pass();
  handles_.hide_all();
  reducer_.clear();
  if (early_update_ != nullptr) early_update_->end();
  commit_->drop();
  backwards_ = 0;
  saw_other_backward_ = false;
  was_scaled_ = false;
  history_ = history_at_step_;
  compute_.begin();
}

void ShardedEngine::micro_step(const std::function<void()>& body) {
  if (captured_ == nullptr) return body();
  require_between_steps("micro_step");
  TORCH_CHECK(*no_sync_depth_ == 0,
              "[graph] micro_step: called inside no_sync(), expected outside; in a world of one "
              "there is nothing that no_sync() saves");
  adopt_cleared_gradients();
  handles_.count_edits();
  const int64_t before = backwards_;
  if (captured_->run(static_cast<size_t>(before), body, reducer_, streams_)) {
    TORCH_CHECK(backwards_ == before + 1, "[graph] micro_step: got a body with ",
                backwards_ - before, " backwards, expected one");
    return;
  }
  ++backwards_;
  was_scaled_ = true;
  show_gradients();
}

// --- Step ---

/// Ends what steps and operators have left under way: after it no rank writes or reads parameters
/// of its own accord.
void ShardedEngine::settle() {
  store_.finish();
  store_.free_all();
}

/// A step that is refused late has taken its history along, and what came after it.
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
    }
    throw;
  }
}

StepResult ShardedEngine::step() {
  failure_.require_none();
  require_outside_backward("step");
  const at::NoGradGuard no_grad;
  streams_.pass();
  learn_outcome();  // before this step's paper is written
  return last_result_ = failure_.guard([&] {
    settle();
    if (!is_updated()) adopt_cleared_gradients();
    reduce_in_step();
    reducer_.finish();

    const std::optional<StepCommit::Outcome> outcome =
        guard_late([&] { return commit_->commit(reducer_, paper(find_misuse())); });
    history_agreed_ = history_at_step_;
    if (commit_->is_late() || outcome->committed) {
      history_.record(RollingHash::Event::kStep, steps_);
      history_at_step_ = history_;
    }
    clear();
    // From now on a step allocates what the one before it did.
    if (++steps_here_ == 2 && parts_.options.keep_freed_memory) use_huge_pages_in_heap();
    return outcome.has_value() ? result_of(*outcome) : last_result_;
  });
}

/// Under late verdicts: waits for what became of the last step.
void ShardedEngine::learn_outcome() {
  failure_.guard([&] {
    const std::optional<StepCommit::Outcome> outcome = guard_late([&] { return commit_->wait(); });
    if (!outcome.has_value()) return;
    last_result_ = result_of(*outcome);
    history_agreed_ = history_at_step_;
  });
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

StepVote::Paper ShardedEngine::paper(std::string misuse) {
  StepVote::Paper paper;
  paper.step = steps_ + 1;
  paper.backwards = backwards_;
  paper.history = history_.value();
  if (store_.gathered() != nullptr) paper.gathers = store_.gathered()->history();
  paper.gradient_edits = handles_.count_edits();
  paper.loss_scale = loss_scale();
  paper.misuse = std::move(misuse);
  if (is_updated()) {
    paper.if_refused = "What backward updated waits for the step() that all ranks agree to.";
  }
  return paper;
}

/// Reduces what no_sync() left on this rank. Peers may have gradients in a backward that gave this
/// rank none; then it takes part with zeros.
void ShardedEngine::reduce_in_step() {
  const bool is_idle = backwards_ == 0 && saw_other_backward_;
  if (!is_idle && !reducer_.has_local()) return;
  handles_.count_edits();
  if (early_update_ != nullptr) agree_to_update();
  reducer_.begin_micro_step(Reducer::Mode::kReduce);
  finish_reductions();
  if (is_idle) backwards_ = 1;
  show_gradients();
}

/// "" if nothing on this rank speaks against the step.
std::string ShardedEngine::find_misuse() const {
  if (commit_->has_loss_scale() && !was_scaled_ && backwards_ > 0) {
    return "backward was called on a loss without engine->scale(loss), which loss_scale needs";
  }
  return misuse_.before_step();
}

}  // namespace tessera
