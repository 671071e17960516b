#include "tessera/zero/sharded_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/errors.h"
#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/memory/memory_formula.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/core/step/publish.h"
#include "tessera/optim/flat_adamw.h"
#include "tessera/zero/partition.h"

namespace tessera {

// Note [The step is a fence]
// Parameters change in step() and modify_parameters() only, and between two of them no rank changes
// a byte that another may read. step() first finishes every reduction, then votes; only a unanimous
// vote lets any rank write. What one rank finds wrong (a parameter written elsewhere, an open
// scope, no backward, a non-finite gradient) it puts on its paper instead of throwing, so that all
// ranks throw together and none is left waiting.

namespace {

/// c10::Error carries a backtrace that no peer wants to read.
std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

std::vector<Range> kept_ranges(const UnitPlan& plan, const Reducer& reducer) {
  std::vector<Range> kept;
  for (size_t unit = 0; unit < plan.size(); ++unit) kept.push_back(reducer.reduced(unit).kept());
  return kept;
}

}  // namespace

ShardedEngine::ShardedEngine(Parts parts, std::vector<at::Tensor> buffers)
    : parts_(std::move(parts)),
      flat_(
          parts_.table, parts_.plan,
          [this](int64_t numel, at::ScalarType dtype) {
            return parts_.group->allocate(numel, dtype);
          },
          meter_),
      reducer_(
          *parts_.group, parts_.table, parts_.plan, parts_.degrees,
          parts_.options.poison_freed ? SlabPool::OnRelease::kPoison : SlabPool::OnRelease::kKeep,
          meter_, history_),
      handles_(parts_.table, whole_gradients()),
      optimizer_(make_flat_adamw(
          parts_.table, parts_.optimizer, parts_.group_of,
          optimizer_shards(parts_.plan, flat_.values(), kept_ranges(parts_.plan, reducer_)))),
      gradients_(parts_.plan.size()),
      vote_(*parts_.group, parts_.table, optimizer_->hyper_parameter_names()),
      access_(*parts_.group, parts_.table, parts_.plan, flat_),
      watch_(*this) {
  meter_.add(MemoryClass::kOptimizer, optimizer_->state_bytes());
  meter_.add(MemoryClass::kControl, vote_.bytes() + access_.bytes());

  access_.sync(/*from_rank=*/0, buffers, "initial state");

  for (size_t i = 0; i < parts_.table.size(); ++i) {
    if (!parts_.plan.has_place(i)) continue;
    GradientSink& sink = *this;
    hooks_.push_back(std::make_unique<GradientHook>(parts_.table[i].tensor, i, sink));
  }
}

ShardedEngine::~ShardedEngine() { handles_.hide_all(); }

std::vector<at::Tensor> ShardedEngine::whole_gradients() const {
  std::vector<at::Tensor> whole(parts_.table.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    if (!parts_.plan.has_place(i)) continue;
    const UnitPlan::Place place = parts_.plan.place(i);
    const FlatLayout& layout = parts_.plan[place.unit].layout;
    const ReducedGradient& reduced = reducer_.reduced(place.unit);
    if (reduced.kept().numel != layout.numel() || !reduced.own_buffer().defined()) continue;
    whole[i] = view_like(reduced.own_buffer(), layout.parameter_range(place.position),
                         parts_.table[i].tensor);
  }
  return whole;
}

// --- Failure ---

void ShardedEngine::require_usable() const {
  if (failure_.has_value()) throw CommError(*failure_);
}

void ShardedEngine::require_outside_backward(const char* call) const {
  TORCH_CHECK(!in_micro_step_ && !watch_.is_inside_backward(), "[engine] ", call,
              ": called inside backward; call it after backward has returned");
}

/// This rank cannot go on, for a reason that its peers do not know.
void ShardedEngine::fail(const std::string& what) noexcept {
  if (failure_.has_value()) return;
  const int rank = parts_.group->rank();
  const std::string cause = absl::StrCat("rank ", rank, " ", what);
  failure_.emplace(CommErrorContext{"engine", std::string(parts_.group->name()), -1, rank, ""},
                   cause);
  // Peers may wait for reductions that will never come.
  parts_.group->abort(cause);
}

void ShardedEngine::fail(const CommError& error) noexcept {
  if (!failure_.has_value()) failure_ = error;
}

/// Runs collective code; a failed collective ends the engine.
template <typename Body>
auto ShardedEngine::guard(Body&& body) {
  try {
    return body();
  } catch (const CommError& error) {
    fail(error);
    throw;
  }
}

// --- Backward ---

void ShardedEngine::before_gradient(size_t index) {
  require_usable();
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
}

void ShardedEngine::gradient(size_t index, at::Tensor gradient) {
  // A parameter that left its unit may have another shape; the vote will name it.
  if (!flat_.lives_here(index)) return;
  try {
    guard([&] { reducer_.land(index, gradient.detach()); });
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
  guard([&] { reducer_.end_micro_step(); });
  show_gradients();
}

void ShardedEngine::backward_failed() noexcept {
  if (!in_micro_step_) return;
  in_micro_step_ = false;
  fail(hook_error_.empty()
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

void ShardedEngine::zero_grad() {
  require_usable();
  require_outside_backward("zero_grad");
  clear();
}

void ShardedEngine::clear() {
  handles_.hide_all();
  reducer_.clear();
  backwards_ = 0;
  saw_other_backward_ = false;
  history_ = history_at_step_;
}

// --- Step ---

StepResult ShardedEngine::step() {
  require_usable();
  require_outside_backward("step");
  const at::NoGradGuard no_grad;
  return guard([&] {
    adopt_cleared_gradients();
    reduce_in_step();

    StepVote::Paper paper;
    paper.step = steps_ + 1;
    paper.backwards = backwards_;
    paper.history = history_.value();
    paper.gradient_edits = handles_.count_edits();
    paper.misuse = find_misuse();
    const std::vector<int64_t>& non_finite = reducer_.non_finite();
    for (size_t i = 0; i < non_finite.size(); ++i) {
      if (non_finite[i] == 0) continue;
      if (paper.non_finite == 0) paper.non_finite_parameter = static_cast<int64_t>(i);
      paper.non_finite += non_finite[i];
    }
    if (backwards_ > 0) paper.squares = squares();
    hyper_parameters_.clear();
    optimizer_->append_hyper_parameters(hyper_parameters_);
    const double norm = vote_.agree(paper, hyper_parameters_);

    apply(clip_factor(norm, parts_.options.max_grad_norm));
    StepResult result{.committed = true, .step = ++steps_, .grad_norm = norm};
    for (const uint8_t used : reducer_.used()) result.used_parameters += used;
    history_.record(RollingHash::Event::kStep, steps_);
    history_at_step_ = history_;
    clear();
    return result;
  });
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
    return "step() was called while a full_parameters() scope is open; end the scope first";
  }
  const FlatParameters::Finding finding = flat_.inspect();
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

ExactSum ShardedEngine::squares() const {
  ExactSum sum;
  for (size_t unit = 0; unit < parts_.plan.size(); ++unit) {
    const ReducedGradient& reduced = reducer_.reduced(unit);
    const FlatLayout& layout = parts_.plan[unit].layout;
    // Each rank counts its own slice only, also where it keeps more.
    for (Segment segment : layout.segments(layout.slice_range(parts_.group->rank()))) {
      segment.buffer_offset -= reduced.kept().begin;
      add_squares(reduced.value(), segment, sum);
    }
  }
  return sum;
}

void ShardedEngine::apply(double scale) {
  const std::vector<uint8_t>& used = reducer_.used();
  for (size_t unit = 0; unit < gradients_.size(); ++unit) {
    gradients_[unit] = reducer_.reduced(unit).value();
  }
  optimizer_->update(gradients_, used, scale);

  for (size_t unit = 0; unit < parts_.plan.size(); ++unit) {
    const std::vector<size_t>& members = parts_.plan[unit].parameters;
    const bool is_updated = std::any_of(members.begin(), members.end(),
                                        [&used](size_t index) { return used[index] != 0; });
    if (is_updated && parts_.degrees.optimizer > 1) {
      publish(*parts_.group, flat_.values()[unit], parts_.plan[unit].name);
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) flat_.bump_version(i);
  }
  flat_.accept();
}

// --- Reading and writing parameters ---

void ShardedEngine::modify_parameters(int from_rank, const std::function<void()>& write) {
  require_usable();
  require_outside_backward("modify_parameters");
  const auto write_or_fail = [&] {
    try {
      write();
    } catch (const std::exception& error) {
      fail(absl::StrCat("left modify_parameters by an exception: ", text_of(error)));
      throw;
    }
  };
  guard([&] { access_.modify(from_rank, write ? std::function<void()>(write_or_fail) : nullptr); });
}

Engine::FullParameters ShardedEngine::full_parameters() {
  require_usable();
  require_outside_backward("full_parameters");
  return guard([&] { return access_.open_scope(); });
}

uint64_t ShardedEngine::parameter_hash() {
  require_usable();
  require_outside_backward("parameter_hash");
  return guard([&] { return access_.hash(); });
}

MemoryBytes ShardedEngine::predicted_memory(int micro_steps) const {
  return memory_formula(parts_.plan, parts_.degrees, micro_steps);
}

}  // namespace tessera
