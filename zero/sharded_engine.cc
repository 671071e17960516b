#include "tessera/zero/sharded_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/error_text.h"
#include "tessera/core/errors.h"
#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/memory/memory_formula.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/optim/flat_adamw.h"
#include "tessera/zero/partition.h"

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
      slices_(parts_.degrees, parts_.group->size(), parts_.group->rank()),
      trace_(parts_.options.trace ? std::make_unique<Trace>() : nullptr),
      compute_(trace_.get()),
      watch_(*this),
      store_(*parts_.group, parts_.table, parts_.plan, slices_, store_setting(), meter_,
             trace_.get()),
      reducer_(
          *parts_.group, parts_.table, parts_.plan, slices_,
          parts_.options.poison_freed ? SlabPool::OnRelease::kPoison : SlabPool::OnRelease::kKeep,
          meter_, history_, trace_.get()),
      handles_(parts_.table, reducer_.gradient_views()),
      optimizer_(
          make_flat_adamw(parts_.table, parts_.optimizer, parts_.group_of,
                          optimizer_shards(parts_.plan, slices_, store_.masters().values()))),
      gradients_(parts_.plan.trainable_size()),
      vote_(*parts_.group, parts_.table, optimizer_->hyper_parameter_names()),
      access_(*parts_.group, parts_.table, parts_.plan, store_),
      state_(*parts_.group, parts_.table, parts_.plan, slices_, std::move(buffers), *optimizer_,
             store_.masters(), store_.flat()) {
  if (parts_.options.loss_scale.has_value()) scaler_.emplace(*parts_.options.loss_scale);
  meter_.add(MemoryClass::kOptimizer, optimizer_->state_bytes());
  meter_.add(MemoryClass::kControl, vote_.bytes() + access_.bytes());
  for (size_t i = 0; i < parts_.table.size(); ++i) {
    if (!parts_.table[i].is_trainable) continue;
    GradientSink& sink = *this;
    hooks_.push_back(std::make_unique<GradientHook>(parts_.table[i].tensor, i, sink));
  }
  compute_.begin();
}

ShardedEngine::~ShardedEngine() { handles_.hide_all(); }

ParameterStore::Setting ShardedEngine::store_setting() {
  ParameterStore::Setting setting = parts_.store;
  setting.gather.is_inside_backward = [this] { return watch_.is_inside_backward(); };
  return setting;
}

void ShardedEngine::require_outside_backward(const char* call) const {
  TORCH_CHECK(!in_micro_step_ && !watch_.is_inside_backward(), "[engine] ", call,
              ": called inside backward; call it after backward has returned");
}

// --- Backward ---

void ShardedEngine::before_gradient(size_t index) {
  failure_.require_none();
  TORCH_CHECK(watch_.is_inside_backward(), "[grad] '", parts_.table[index].name,
              "': backward runs on a thread that does not know this engine, so its end would go "
              "unnoticed; call backward on the thread that called parallelize");
  if (!in_micro_step_) begin_micro_step();
  try {
    handles_.hide(index);
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

void ShardedEngine::begin_micro_step() {
  hook_error_.clear();
  adopt_cleared_gradients();
  handles_.count_edits();
  reducer_.begin_micro_step(*no_sync_depth_ > 0 ? Reducer::Mode::kAddLocally
                                                : Reducer::Mode::kReduce);
  in_micro_step_ = true;
  compute_.end("forward");
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
  in_micro_step_ = false;
  ++backwards_;
  store_.free_all();
  failure_.guard([&] { reducer_.end_micro_step(); });
  show_gradients();
  compute_.end("backward");
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
    history_.record(RollingHash::Event::kDrop, static_cast<int64_t>(index));
  }
}

at::Tensor ShardedEngine::scale(const at::Tensor& loss) {
  was_scaled_ = true;
  return scaler_.has_value() ? loss * scaler_->scale() : loss;
}

void ShardedEngine::zero_grad() {
  failure_.require_none();
  require_outside_backward("zero_grad");
  clear();
}

void ShardedEngine::clear() {
  handles_.hide_all();
  reducer_.clear();
  backwards_ = 0;
  saw_other_backward_ = false;
  was_scaled_ = false;
  history_ = history_at_step_;
  compute_.begin();
}

// --- Step ---

/// Ends what steps and operators have left under way: after it no rank writes or reads parameters
/// of its own accord.
void ShardedEngine::settle() {
  store_.finish();
  store_.free_all();
}

StepResult ShardedEngine::step() {
  failure_.require_none();
  require_outside_backward("step");
  const at::NoGradGuard no_grad;
  return failure_.guard([&] {
    settle();
    adopt_cleared_gradients();
    reduce_in_step();
    reducer_.finish();

    const StepVote::Paper mine = paper();
    hyper_parameters_.clear();
    optimizer_->append_hyper_parameters(hyper_parameters_);
    const StepVote::Verdict verdict = [&] {
      const TraceSpan span(trace_.get(), TraceTrack::kVote, "vote");
      return vote_.agree(mine, hyper_parameters_);
    }();
    if (verdict.non_finite.has_value()) return skip(verdict);

    apply(clip_factor(verdict.grad_norm, parts_.options.max_grad_norm) / mine.loss_scale);
    StepResult result{.committed = true,
                      .step = ++steps_,
                      .grad_norm = verdict.grad_norm,
                      .loss_scale = mine.loss_scale};
    for (const uint8_t used : reducer_.used()) result.used_parameters += used;
    if (scaler_.has_value()) scaler_->update(/*overflowed=*/false);
    history_.record(RollingHash::Event::kStep, steps_);
    history_at_step_ = history_;
    clear();
    // From now on a step allocates what the one before it did.
    if (++steps_here_ == 2 && parts_.options.keep_freed_memory) use_huge_pages_in_heap();
    return result;
  });
}

StepVote::Paper ShardedEngine::paper() {
  StepVote::Paper paper;
  paper.step = steps_ + 1;
  paper.backwards = backwards_;
  paper.history = history_.value();
  paper.gradient_edits = handles_.count_edits();
  paper.loss_scale = loss_scale();
  paper.misuse = find_misuse();
  const std::vector<int64_t>& non_finite = reducer_.non_finite();
  for (size_t i = 0; i < non_finite.size(); ++i) {
    if (non_finite[i] == 0) continue;
    if (paper.non_finite == 0) paper.non_finite_parameter = static_cast<int64_t>(i);
    paper.non_finite += non_finite[i];
  }
  if (backwards_ > 0) paper.squares = reducer_.squares();
  return paper;
}

/// What the user wants of a step whose gradients are not finite. Equal on all ranks.
StepResult ShardedEngine::skip(const StepVote::Verdict& verdict) {
  const Options& options = parts_.options;
  const NonFinite preset = scaler_.has_value() ? NonFinite::kSkip : NonFinite::kStop;
  const NonFinite policy = options.ask_non_finite
                               ? vote_.ask(options.ask_non_finite, *verdict.non_finite)
                               : options.on_non_finite.value_or(preset);
  TORCH_CHECK(policy == NonFinite::kSkip, describe(*verdict.non_finite));
  const StepResult result{
      .step = steps_, .grad_norm = verdict.grad_norm, .loss_scale = loss_scale()};
  if (scaler_.has_value()) scaler_->update(/*overflowed=*/true);
  clear();
  return result;
}

/// Reduces what no_sync() left on this rank. Peers may have gradients in a backward that gave this
/// rank none; then it takes part with zeros.
void ShardedEngine::reduce_in_step() {
  const bool is_idle = backwards_ == 0 && saw_other_backward_;
  if (!is_idle && !reducer_.has_local()) return;
  handles_.count_edits();
  reducer_.begin_micro_step(Reducer::Mode::kReduce);
  reducer_.end_micro_step();
  if (is_idle) backwards_ = 1;
  show_gradients();
}

/// "" if nothing on this rank speaks against the step.
std::string ShardedEngine::find_misuse() const {
  if (access_.has_open_scope()) {
    return "step() was called while a full_parameters() or gather() scope is open; end the scope "
           "first";
  }
  if (scaler_.has_value() && !was_scaled_ && backwards_ > 0) {
    return "backward was called on a loss without engine->scale(loss), which loss_scale needs";
  }
  const FlatParameters::Finding finding = store_.flat().inspect();
  if (finding.violation != FlatParameters::Violation::kNone) {
    return describe(finding.violation, parts_.table[finding.parameter].name);
  }
  if (const std::optional<size_t> replaced = handles_.replaced()) {
    return absl::StrCat(
        "[grad] '", parts_.table[*replaced].name,
        "': .grad was assigned outside the engine, which would not use it; write "
        "into the tensor that is there (ddp), or clear it (.mutable_grad().reset())");
  }
  return optimizer_->problem();
}

void ShardedEngine::apply(double scale) {
  const std::vector<uint8_t>& used = reducer_.used();
  {
    const TraceSpan span(trace_.get(), TraceTrack::kOptimizer, "update");
    for (size_t unit = 0; unit < gradients_.size(); ++unit) {
      gradients_[unit] = reducer_.gradient(unit);
    }
    optimizer_->update(gradients_, used, scale);
    std::fill(gradients_.begin(), gradients_.end(), at::Tensor());
  }
  store_.publish(used);
}

// --- Reading and writing parameters ---

void ShardedEngine::modify_parameters(int from_rank, const std::function<void()>& write) {
  failure_.require_none();
  require_outside_backward("modify_parameters");
  const auto write_or_fail = [&] {
    try {
      write();
    } catch (const std::exception& error) {
      failure_.set(absl::StrCat("left modify_parameters by an exception: ", error_text(error)));
      throw;
    }
  };
  failure_.guard(
      [&] { access_.modify(from_rank, write ? std::function<void()>(write_or_fail) : nullptr); });
}

Engine::FullParameters ShardedEngine::full_parameters() {
  failure_.require_none();
  require_outside_backward("full_parameters");
  return failure_.guard([&] { return access_.open_scope(); });
}

Engine::Gathered ShardedEngine::gather(const torch::nn::Module& module) {
  failure_.require_none();
  return failure_.guard([&] { return access_.gather(module); });
}

void ShardedEngine::wait() {
  failure_.require_none();
  failure_.guard([&] { store_.finish(); });
}

uint64_t ShardedEngine::parameter_hash() {
  failure_.require_none();
  require_outside_backward("parameter_hash");
  return failure_.guard([&] { return access_.hash(); });
}

// --- State ---

EngineCounters ShardedEngine::counters() const {
  return {.steps = steps_,
          .loss_scale = loss_scale(),
          .good_steps = scaler_ ? scaler_->good_steps() : 0,
          .has_scaler = scaler_.has_value()};
}

StateDict ShardedEngine::state_dict(StateScope scope, int rank) {
  failure_.require_none();
  require_outside_backward("state_dict");
  const at::NoGradGuard no_grad;
  return failure_.guard([&] {
    store_.finish();
    return state_.save(scope, rank, counters());
  });
}

void ShardedEngine::load_state_dict(const StateDict& state) {
  failure_.require_none();
  require_outside_backward("load_state_dict");
  const at::NoGradGuard no_grad;
  failure_.guard([&] {
    settle();
    access_.require_settled("load_state_dict");
    EngineCounters loaded = counters();
    state_.load(state, loaded);
    steps_ = loaded.steps;
    if (scaler_.has_value()) scaler_->load(loaded.loss_scale, loaded.good_steps);
    clear();
    store_.announce();
  });
}

// --- Numbers ---

GatherCounts ShardedEngine::gather_counts() const {
  return store_.gathered() == nullptr ? GatherCounts{} : store_.gathered()->counts();
}

MemoryBytes ShardedEngine::predicted_memory(int micro_steps) const {
  return memory_formula(parts_.plan,
                        {.degrees = parts_.degrees,
                         .micro_steps = micro_steps,
                         .is_split = store_.flat().is_split(),
                         .ranks_after_forward = parts_.store.gather.ranks_after_forward});
}

}  // namespace tessera
