// An engine while gradients come; see sharded_engine.cc for what step() makes of them.
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/grad/loss_weight.h"
#include "tessera/errors.h"
#include "tessera/zero/engine/batch_norms.h"
#include "tessera/zero/engine/given_gradients.h"
#include "tessera/zero/engine/sharded_engine.h"

namespace tessera::internal {

// Note [Writes behind the engine's back]
// The vote does not detect an optimizer of the user's own over the model's parameters in a loop
// that never calls step(). So every backward of the engine's model begins by checking version
// counters and first elements (MisuseCheck::written(): under a microsecond per parameter; page
// tables would show more where parameters are shared, but reading those of 500 MB takes 16 ms). A
// rank that finds a write reports it in the all-gather at the end of backward, and all ranks throw
// from backward. The gradients remain valid, and modify_parameters() repairs the state. Inside
// no_sync() nothing is reported; the next backward that reduces finds the write again. Under
// asynchronous steps backward has no such all-gather: if a second backward finds a write, and no
// step() was called in between to report it, the engine fails on all ranks.

// Note [Failed gathers]
// An operator whose unit cannot be gathered meets a storage that denies access, and LibTorch throws
// c10::Error of that, with the text of the CommError (Note [Access observer]). So whoever runs
// forward, or loss.backward(), catches c10::Error; engine->backward() throws the CommError in its
// place, and the next call of the engine throws it, too.

void ShardedEngine::before_gradient(size_t index) {
  failure_.require_none();
  TORCH_CHECK(
      watch_.is_inside_backward(), "[grad] '", parts_.table[index].name,
      "': backward runs on a thread that does not know this engine, or hides its operators, "
      "so its end would go unnoticed; call backward on the thread that called parallelize, "
      "without ",
      kWhatHidesOperators);
  TORCH_CHECK(!lasting_.comm_hook.is_running(), "[grad] '", parts_.table[index].name,
              "': backward runs inside the communication hook, which works on the gradients that "
              "it would add to; compute there without the model's parameters");
  streams_.pass();
  if (!in_micro_step_) failure_.guard([&] { begin_micro_step(); });
  try {
    handles_.hide(index);
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

/// Ranks have the same options, so all that call it throw, with nothing under way.
Engine::NoSync ShardedEngine::no_sync() {
  if (is_any_world_size()) {
    refuse_reproducible(
        "no_sync", "micro-batches are added over ranks before they are added over micro-steps");
  }
  return Engine::NoSync(lasting_.no_sync_depth);
}

/// The same.
void ShardedEngine::require_weights() const {
  if (is_any_world_size()) {
    refuse_reproducible("backward with a weight",
                        "all micro-batches count the same: products with weights, and their sum, "
                        "are rounded");
  }
  const char* option = early_update_ != nullptr ? "optimizer_in_backward"
                       : commit_->is_late()     ? "asynchronous_step"
                       : captured_ != nullptr   ? "cuda_graphs"
                                                : nullptr;
  TORCH_CHECK(option == nullptr, "[engine] backward: got a weight under Options::", option,
              ", which uses gradients before all weights of the step are known; set it to false");
  if (!parts_.group->device().is_cpu()) {  // there backward has threads of its own
    const std::string name = first_sync_batch_norm(*lasting_.model);
    TORCH_CHECK(name.empty(), "[engine] backward: got a weight on ", parts_.group->device().str(),
                " in a model with the SyncBatchNorm '", name,
                "', which cannot know there how the ranks' losses count; multiply the losses by N "
                "weight / (sum of all ranks' weights) and leave the weight out");
  }
  TORCH_CHECK(
      !lasting_.comm_hook.carries_gradients(),
      "[engine] backward: got a weight beside the communication hook '",
      lasting_.comm_hook.hook()->name(),
      "', which carries errors from steps of one sum of weights into steps of another; turn "
      "its error feedback off, or use losses without weights");
}

/// See Note [Failed gathers].
void ShardedEngine::differentiate(const at::Tensor& loss, bool retain_graph) {
  try {
    scale(loss).backward({}, retain_graph);
  } catch (const c10::Error&) {
    if (const std::optional<CommError> failed = store_.failed_gather()) throw CommError(*failed);
    throw;
  }
}

void ShardedEngine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  require_usable();
  require_outside_backward("backward");
  TORCH_CHECK(loss.defined() || options.weight == 0.0,
              "[engine] backward: got an undefined loss, expected a tensor of one element; compute "
              "it, or say that it has no samples (weight 0)");
  if (!options.weight.has_value()) return differentiate(loss, options.retain_graph);
  require_weights();
  const std::string wrong = problem_of_weight(options.weight);
  TORCH_CHECK(wrong.empty() || *lasting_.no_sync_depth == 0, "[engine] rank ", parts_.group->rank(),
              ": ", wrong);
  next_weight_ = options.weight;
  const auto forget = c10::make_scope_exit([this] { next_weight_.reset(); });
  const bool is_constant = !loss.defined() || !loss.requires_grad();
  if (!is_constant || *options.weight != 0.0) {
    const LossWeight counts_by(wrong.empty() ? *options.weight : 1.0);
    differentiate(loss, options.retain_graph);
  }
  if (!next_weight_.has_value()) return;
  // Backward gave this model nothing. Peers may have gradients, and the weight counts.
  was_scaled_ = true;
  const at::NoGradGuard no_grad;
  streams_.pass();
  failure_.guard([&] { begin_micro_step(); });
  end_micro_step();
}

/// A micro-step whose gradients come all at once. What is wrong with them is found before it
/// begins, so that all ranks refuse it together.
void ShardedEngine::accumulate(const std::vector<NamedTensor>& gradients,
                               std::optional<double> weight) {
  require_usable();
  if (weight.has_value()) require_weights();
  const at::NoGradGuard no_grad;
  streams_.pass();
  const bool is_alone = *lasting_.no_sync_depth > 0 && early_update_ == nullptr;
  std::string problem = misplaced();
  if (!is_alone && problem.empty()) {
    announce(Announcements::Call::kAccumulate, "accumulate", weight.has_value());
    leave_average("accumulate", InAverage::kRefused);
  }
  const GivenGradients given = given_gradients(parts_.table, gradients);
  if (problem.empty()) problem = given.problem;
  if (problem.empty()) problem = problem_of_weight(weight);
  if (const std::optional<size_t> replaced = handles_.replaced();
      problem.empty() && replaced.has_value()) {
    problem = absl::StrCat("'", parts_.table[*replaced].name,
                           "': .grad was assigned outside the engine; clear it "
                           "(.mutable_grad().reset()) first");
  }
  if (is_alone) {
    TORCH_CHECK(problem.empty(), "[accumulate] rank ", parts_.group->rank(), ": ", problem);
  } else {
    learn_outcome();  // it uses the same channel
    failure_.guard([&] { refuse_on_all_ranks(*parts_.group, problem, "accumulate"); });
  }
  is_announced_ = !is_alone && open_join_ != nullptr;
  next_weight_ = weight;
  const auto forget = c10::make_scope_exit([this] { next_weight_.reset(); });
  failure_.guard([&] { begin_micro_step(); });
  failure_.abort_all_on_exception("accumulate", [&] {
    for (const auto& [parameter, gradient] : given.placed) {
      handles_.hide(parameter);
      this->gradient(parameter, gradient);
    }
  });
  end_micro_step();
}

void ShardedEngine::begin_micro_step() {
  hook_error_.clear();
  TORCH_CHECK(lasting_.running == nullptr, "[engine] backward: called inside ", lasting_.running,
              ", by a function that was given to the engine; call it afterwards");
  TORCH_CHECK(open_average_ == nullptr,
              "[engine] backward: called inside begin_average(), where the model is the average of "
              "its weights, which is not trained; end it before the forward, by end() of its scope "
              "or, if that was dropped, by another collective call");
  const bool is_local = *lasting_.no_sync_depth > 0;
  if (!is_following_ && !std::exchange(is_announced_, false)) {
    announce(is_local ? Announcements::Call::kLocalMicroStep : Announcements::Call::kMicroStep,
             "backward", next_weight_.has_value());
  }
  if (early_update_ != nullptr) {
    take_hyper_parameters();
    agree_to_update();
  }
  failure_.abort_all_on_exception("backward", [&] {
    if (early_update_ == nullptr) look_for_writes();
    adopt_cleared_gradients();
    handles_.count_edits();
  });
  if (!is_following_ || announcements_->is_weighted()) {
    weight_.begin(is_following_ ? 0.0 : std::exchange(next_weight_, std::nullopt));
  }
  reducer_.begin_micro_step(is_local ? Reducer::Mode::kAddLocally : Reducer::Mode::kReduce,
                            weight_.factor() * early_factor());
  if (!is_local) ++reductions_;
  in_micro_step_ = true;
  micro_batches_.begin();
  lasting_.comm_hook.note_backward();
  compute_.end("forward");
  times_.begin_backward();
}

/// See Note [Writes behind the engine's back].
void ShardedEngine::look_for_writes() {
  store_.finish();
  std::string found = misuse_.written();
  if (!found.empty() && !written_.empty() && commit_->is_late()) {
    failure_.set(absl::StrCat("found in the second backward without a step(): ", found));
    failure_.require_none();
  }
  written_ = std::move(found);
}

/// Refuses on all ranks what step() would refuse, while nothing is updated.
void ShardedEngine::agree_to_update() {
  const StepVote::RankReport mine = failure_.abort_all_on_exception("backward", [&] {
    store_.finish();
    apply_schedule();
    std::string misuse = misuse_.before_updating_backward(*lasting_.no_sync_depth > 0);
    if (misuse.empty()) misuse = schedule_problem_;
    if (misuse.empty()) misuse = find_untrained();
    StepVote::RankReport mine = rank_report(std::move(misuse));
    mine.backwards = 1;
    return mine;
  });
  try {
    commit_->agree_to_update(mine);
  } catch (const c10::Error&) {
    lasting_.schedule.take_back(commit_->optimizer().groups());
    throw;
  }
  early_update_->begin();
}

/// What gradients are multiplied with where backward updates, so that the mean over all ranks is
/// that over the ranks that have batches. Note [Join].
double ShardedEngine::early_factor() const {
  const bool applies = early_update_ != nullptr && open_join_ != nullptr &&
                       open_join_->options.divide == JoinOptions::Divide::kByActive;
  return applies ? static_cast<double>(parts_.group->size()) / announcements_->active() : 1.0;
}

void ShardedEngine::gradient(size_t index, at::Tensor gradient) {
  // A parameter that left its unit may have another shape; the vote will name it.
  if (!store_.flat().lives_here(index)) return;
  try {
    failure_.guard([&] { reducer_.receive(index, gradient.detach()); });
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
  times_.end_gradients();
  micro_batches_.end();
  const bool is_objected = failure_.abort_all_on_exception("the end of backward", [&] {
    streams_.pass();
    store_.free_all();
    return finish_reductions(!written_.empty());
  });
  compute_.end("backward");
  times_.end_backward();
  if (is_objected) refuse_backward(written_);
}

/// Behind a backward that a rank objects to, or whose weights all ranks have found wrong.
void ShardedEngine::refuse_backward(const std::string& problem) {
  failure_.guard([&] {
    refuse_on_all_ranks(*parts_.group, problem.empty() ? weight_.problem() : problem, "grad");
  });
}

/// Returns whether a rank objects to the backward.
bool ShardedEngine::finish_reductions(bool objects) {
  bool is_objected = false;
  try {
    BackwardAgreement::Report report = weight_.report();
    report.objects = objects || !weight_.problem().empty();
    is_objected = reducer_.end_micro_step(report);
    if (reducer_.has_exchanged()) weight_.collect(reducer_.agreement());
  } catch (const ErrorOnAllRanks&) {
    show_gradients();  // for users to clear
    throw;
  }
  if (early_update_ != nullptr) early_update_->finish(reducer_);
  show_gradients();
  return is_objected || (reducer_.has_exchanged() && !weight_.problem().empty());
}

void ShardedEngine::backward_failed() noexcept {
  take_failed_gather();
  if (!in_micro_step_) return;
  in_micro_step_ = false;
  failure_.set(
      hook_error_.empty()
          ? "left backward by an exception, which that rank reports; the gradients of this step "
            "are incomplete and the engine cannot go on"
          : absl::StrCat("left backward by an exception: ", hook_error_));
}

void ShardedEngine::show_gradients() {
  const bool is_partial = reducer_.ranks_differ() || !micro_batches_.is_sum_complete(backwards_);
  for (size_t i = 0; i < parts_.table.size(); ++i) {
    const bool is_local = reducer_.local()[i] != 0;
    if (!is_local && reducer_.used()[i] == 0) continue;
    handles_.show(i, is_local || is_partial ? GradientHandles::Content::kLocal
                                            : GradientHandles::Content::kReduced);
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
  if (!is_following_) announce(Announcements::Call::kZeroGrad, "zero_grad");
  clear();
  handles_.drop_all();
}

void ShardedEngine::clear() {
  streams_.pass();
  handles_.hide_all();
  reducer_.clear();
  if (early_update_ != nullptr) early_update_->end();
  commit_->drop();
  weight_.clear();
  micro_batches_.clear();
  backwards_ = 0;
  reductions_ = 0;
  saw_other_backward_ = false;
  was_scaled_ = false;
  history_ = history_at_step_;
  compute_.begin();
  times_.begin_step();
}

void ShardedEngine::micro_step(const std::function<void()>& body) {
  if (captured_ == nullptr) return body();
  require_between_steps("micro_step");
  TORCH_CHECK(*lasting_.no_sync_depth == 0,
              "[graph] micro_step: called inside no_sync(), expected outside; in a world of one "
              "there is nothing that no_sync() saves");
  // A world of one, and what is repeated has no hooks.
  const std::string written = misuse_.written();
  TORCH_CHECK(written.empty(), "[grad] rank 0: ", written);
  adopt_cleared_gradients();
  handles_.count_edits();
  const int64_t before = backwards_;
  if (captured_->run(static_cast<size_t>(before), body, reducer_, streams_)) {
    TORCH_CHECK(backwards_ == before + 1, "[graph] micro_step: got a body with ",
                backwards_ - before, " backwards, expected one");
    return;
  }
  ++backwards_;
  micro_batches_.end();
  was_scaled_ = true;
  show_gradients();
}

}  // namespace tessera::internal
