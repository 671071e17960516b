#include "tessera/zero/engine/backward.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/grad/loss_weight_scope.h"
#include "tessera/core/options/option_table.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/errors.h"
#include "tessera/zero/engine/batch_norms.h"

namespace tessera::internal {

// Note [Writes behind the engine's back]
// A loop that never calls step() holds no vote. So the vote does not detect that such a loop
// updates the model's parameters by an optimizer of the user's own. Therefore every backward of the
// engine's model begins by checking version counters and first elements (MisuseCheck::written()).
// This takes under a microsecond per parameter. Page tables would show more where parameters are
// shared, but reading those of 500 MB takes 16 ms. A rank that finds a write reports it in the
// all-gather at the end of backward, and all ranks throw from backward. The gradients remain valid,
// and modify_parameters() repairs the state. Inside no_sync() nothing is reported; the next
// backward that reduces finds the write again. Under asynchronous steps backward has no such
// all-gather: if a second backward finds a write and no step() between the two has reported it, the
// engine fails on all ranks.

// Note [Failed gathers]
// An operator whose unit cannot be gathered gets a storage that denies access. LibTorch then throws
// c10::Error with the text of the CommError (Note [Access observer]). So callers of forward or of
// loss.backward() catch c10::Error. engine->backward() throws the CommError instead, and so does
// the next call of the engine.

Backward::Backward(const Uses& parts)
    : context_(parts.context),
      trained_(parts.trained),
      gradients_(parts.gradients),
      join_(parts.join),
      step_(parts.step),
      average_(parts.average) {
  context_.backward_watch.tell(this);
  if (context_.parts.options.cuda_graphs) {
    captured_ = std::make_unique<CapturedMicroSteps>(context_.group.device());
  }
  // See Note [Backward in a capture].
  const c10::OptionalStreamGuard on_stream(
      captured_ == nullptr ? std::nullopt : std::optional(captured_->stream()));
  const ParameterTable& table = context_.parts.table;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].is_trainable) continue;
    GradientSink& sink = *this;
    hooks_.push_back(std::make_unique<GradientHook>(table[i].tensor, i, sink));
  }
}

Backward::~Backward() { context_.backward_watch.tell(nullptr); }

// --- Autograd's calls ---

void Backward::before_gradient(size_t index) {
  const std::string& name = context_.parts.table[index].name;
  context_.failure.require_none();
  TORCH_CHECK(
      context_.backward_watch.is_inside_backward(), "[grad] '", name,
      "': backward runs on a thread that does not know this engine, or hides its operators, "
      "so its end would go unnoticed; call backward on the thread that called parallelize, "
      "without at::clearCallbacks(), at::RecordFunctionGuard(false) or "
      "at::enableRecordFunction(false)");
  TORCH_CHECK(!context_.persistent.comm_hook.is_running(), "[grad] '", name,
              "': backward runs inside the communication hook, which works on the gradients that "
              "it would add to; compute there without the model's parameters");
  context_.streams.pass();
  if (!in_micro_step_) context_.failure.guard([&] { begin_micro_step(); });
  try {
    gradients_.dot_grads().hide(index);
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

void Backward::gradient(size_t index, at::Tensor gradient) {
  try {
    context_.failure.guard([&] { gradients_.receive(index, gradient); });
  } catch (const c10::Error& error) {
    hook_error_ = error.what_without_backtrace();
    throw;
  }
}

void Backward::backward_ended() {
  if (!in_micro_step_) {
    gradients_.note_other_backward();
    return;
  }
  end_micro_step();
}

void Backward::backward_failed() noexcept {
  if (const auto failed = trained_.store.failed_gather()) context_.failure.set(*failed);
  if (!in_micro_step_) return;
  in_micro_step_ = false;
  context_.failure.set(
      hook_error_.empty()
          ? "left backward by an exception, which that rank reports; the gradients of this step "
            "are incomplete and the engine cannot go on"
          : absl::StrCat("left backward by an exception: ", hook_error_));
}

// --- The user's calls ---

std::string Backward::refusal_of_weights(bool is_known_in_backward) const {
  std::string problem = option_against("backward with a weight", context_.parts.options);
  if (!problem.empty()) return problem;
  // A SyncBatchNorm gets the weight from LossWeightScope, which applies to this thread only. On a
  // GPU backward runs on other threads.
  if (!is_known_in_backward || !context_.group.device().is_cpu()) {
    const std::string name = first_sync_batch_norm(*context_.persistent.model);
    if (!name.empty()) {
      return absl::StrCat(
          "backward: got a weight on ", context_.group.device().str(),
          " in a model with the SyncBatchNorm '", name,
          "', which cannot know there how the ranks' losses count; multiply the losses by N weight "
          "/ (sum of all ranks' weights) and leave the weight out");
    }
  }
  const RegisteredHook& hook = context_.persistent.comm_hook;
  if (!hook.carries_gradients()) return "";
  return absl::StrCat(
      "backward: got a weight beside the communication hook '", hook.hook()->name(),
      "', which carries errors from steps of one sum of weights into steps of another; turn its "
      "error feedback off, or use losses without weights");
}

at::Tensor Backward::scale(const at::Tensor& loss) {
  gradients_.note_scaled();
  return trained_.applier->scale(loss);
}

/// Runs autograd's backward of the scaled loss. If a gather failed during it, throws that
/// CommError. See Note [Failed gathers].
void Backward::differentiate(const at::Tensor& loss, bool retain_graph) {
  try {
    scale(loss).backward({}, retain_graph);
  } catch (const c10::Error&) {
    if (const auto failed = trained_.store.failed_gather()) throw CommError(*failed);
    throw;
  }
}

void Backward::backward(const at::Tensor& loss, const BackwardOptions& options) {
  TORCH_CHECK(loss.defined() || options.weight == 0.0,
              "[engine] backward: got an undefined loss, expected a tensor of one element; compute "
              "it, or say that it has no samples (weight 0)");
  if (!options.weight.has_value()) return differentiate(loss, options.retain_graph);
  const std::string refusal = refusal_of_weights(/*is_known_in_backward=*/true);
  TORCH_CHECK(refusal.empty(), "[engine] ", refusal);
  const std::string wrong = problem_of_weight(options.weight);
  TORCH_CHECK(wrong.empty() || *context_.persistent.no_sync_depth == 0, "[engine] rank ",
              context_.group.rank(), ": ", wrong);
  next_weight_ = options.weight;
  const auto forget = c10::make_scope_exit([this] { next_weight_.reset(); });
  const bool is_constant = !loss.defined() || !loss.requires_grad();
  if (!is_constant || *options.weight != 0.0) {
    const LossWeightScope counts_by(wrong.empty() ? *options.weight : 1.0);
    differentiate(loss, options.retain_graph);
  }
  if (!next_weight_.has_value()) return;
  // Backward gave this model no gradients, so no micro-step has begun. Peers may have gradients,
  // and their mean also depends on this rank's weight. So this rank takes part without gradients.
  gradients_.note_scaled();
  const at::NoGradGuard no_grad;
  context_.streams.pass();
  context_.failure.guard([&] { begin_micro_step(); });
  end_micro_step();
}

bool Backward::accumulates_alone() const {
  return *context_.persistent.no_sync_depth > 0 && trained_.early_update == nullptr;
}

/// Makes a micro-step whose gradients come all at once. The caller has checked them, so that all
/// ranks refuse bad ones together.
void Backward::accumulate(const GivenGradients& given, std::optional<double> weight,
                          bool is_announced) {
  next_weight_ = weight;
  const auto forget = c10::make_scope_exit([this] { next_weight_.reset(); });
  context_.failure.guard([&] { begin_micro_step(is_announced); });
  context_.failure.abort_all_on_exception("accumulate", [&] {
    for (const auto& [parameter, gradient] : given.placed) {
      gradients_.dot_grads().hide(parameter);
      this->gradient(parameter, gradient);
    }
  });
  end_micro_step();
}

void Backward::micro_step(const std::function<void()>& body) {
  if (captured_ == nullptr) return body();
  TORCH_CHECK(*context_.persistent.no_sync_depth == 0,
              "[graph] micro_step: called inside no_sync(), expected outside; in a world of one "
              "there is nothing that no_sync() saves");
  // Hooks look for writes when a backward begins, but a replay runs no hooks, so this looks for
  // them. It may throw on this rank alone, because graphs exist only in a world of one.
  const std::string written = step_.misuse().written();
  TORCH_CHECK(written.empty(), "[grad] rank 0: ", written);
  gradients_.adopt_cleared();
  gradients_.dot_grads().count_edits();
  const int64_t before = gradients_.backwards();
  if (captured_->run(static_cast<size_t>(before), body, gradients_.reducer(), context_.streams)) {
    TORCH_CHECK(gradients_.backwards() == before + 1, "[graph] micro_step: got a body with ",
                gradients_.backwards() - before, " backwards, expected one");
    return;
  }
  gradients_.count_replayed();
}

void Backward::follow(bool is_local) {
  const auto scope = is_local
                         ? std::optional<NoSync>(std::in_place, context_.persistent.no_sync_depth)
                         : std::nullopt;
  gradients_.note_scaled();
  context_.streams.pass();
  context_.failure.guard([&] { begin_micro_step(); });
  end_micro_step();
}

// --- A micro-step ---

void Backward::begin_micro_step(bool is_announced) {
  hook_error_.clear();
  TORCH_CHECK(context_.persistent.running == nullptr, "[engine] backward: called inside ",
              context_.persistent.running,
              ", by a function that was given to the engine; call it afterwards");
  TORCH_CHECK(!average_.is_open(),
              "[engine] backward: called inside begin_average(), where the model is the average of "
              "its weights, which is not trained; end it before the forward, by end() of its scope "
              "or, if that was dropped, by another collective call");
  using Call = JoinProtocol::Call;
  const bool is_local = *context_.persistent.no_sync_depth > 0;
  if (!is_announced) {
    join_.announce(is_local ? Call::kLocalMicroStep : Call::kMicroStep, "backward",
                   next_weight_.has_value());
  }
  if (trained_.early_update != nullptr) {
    join_.take_hyper_parameters();
    step_.agree_to_update();
  }
  context_.failure.abort_all_on_exception("backward", [&] {
    if (trained_.early_update == nullptr) look_for_writes();
    gradients_.adopt_cleared();
    gradients_.dot_grads().count_edits();
  });
  StepWeight& weight = gradients_.weight();
  if (!join_.is_following()) {
    weight.begin(std::exchange(next_weight_, std::nullopt));
  } else if (join_.is_weighted()) {
    weight.begin(0.0);
  }
  gradients_.begin(is_local ? Reducer::Mode::kAddLocally : Reducer::Mode::kReduce,
                   weight.factor() * join_.early_factor());
  in_micro_step_ = true;
  gradients_.micro_batches().begin();
  context_.persistent.comm_hook.note_backward();
  context_.compute.end("forward");
  context_.times.begin_backward();
  report_phase(Phase::kBackward);
}

/// Looks for parameters that were written outside modify_parameters(), and keeps what it finds in
/// written_. See Note [Writes behind the engine's back].
void Backward::look_for_writes() {
  trained_.store.finish();
  std::string found = step_.misuse().written();
  if (!found.empty() && !written_.empty() && trained_.applier->is_late()) {
    context_.failure.set(absl::StrCat("found in the second backward without a step(): ", found));
    context_.failure.require_none();
  }
  written_ = std::move(found);
}

void Backward::end_micro_step() {
  in_micro_step_ = false;
  context_.times.end_gradients();
  gradients_.count_backward();
  const bool is_objected = context_.failure.abort_all_on_exception("the end of backward", [&] {
    context_.streams.pass();
    trained_.store.free_all();
    return gradients_.end(!written_.empty());
  });
  context_.compute.end("backward");
  context_.times.end_backward();
  report_phase(Phase::kForward);
  if (is_objected) gradients_.refuse(written_);
}

}  // namespace tessera::internal
