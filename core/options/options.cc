#include "tessera/options.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"
#include "tessera/core/options/option_field.h"
#include "tessera/core/options/resolved_options.h"

namespace tessera {
using namespace internal;

namespace {

// --- What is refused ---

/// Every reason to refuse options: what the strategy decides, then field by field.
class Refusals {
 public:
  /// Null: not known yet.
  Refusals(const Options& options, const ParameterTable* model, const WorldTraits* world)
      : options_(options), world_(world), strategy_(to_string(options.strategy)) {
    if (!has_known_values()) return;
    check_degrees();
    check_strategy();
    check_choices(model);
    check_gradients();
    check_numerics();
    model != nullptr ? check_precision(*model) : check_precision();
    for (const int64_t cap : options_.bucket_bytes) check_bucket_bytes(cap);
    if (options_.units_in_reduction.has_value()) check_units_in_reduction();
    for (const std::string& problem : problems_of_reproducible(options_, model, world_))
      refuse(problem);
    if (options_.average.has_value()) check_average(*options_.average);
    if (options_.optimizer_in_backward) check_optimizer_in_backward();
    if (options_.offload != Offload::kNone) check_offload();
    if (options_.asynchronous_step.value_or(false)) check_asynchronous_step();
    if (options_.cuda_graphs && world_ != nullptr) check_cuda_graphs();
  }

  absl::Status status() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  template <typename... Text>
  void refuse(const Text&... text) {
    problems_.push_back(absl::StrCat("[options] ", text...));
  }
  bool has_known_values();
  void check_degrees();
  void check_reshard();
  void check_strategy();
  void check_choices(const ParameterTable* model);
  void check_gradients();
  void check_gradients_on_device();
  void check_numerics();
  void check_precision();
  void check_precision(const ParameterTable& model);
  void check_bucket_bytes(int64_t cap);
  void check_units_in_reduction();
  void check_average(const WeightAverage& average);
  void check_optimizer_in_backward();
  void check_offload();
  void check_asynchronous_step();
  void check_cuda_graphs();
  bool is_on_cpu() const { return world_ != nullptr && world_->can.completes_on_host; }

  const Options& options_;
  const WorldTraits* const world_;
  const std::string strategy_;
  std::optional<Degrees> shape_;    // in a world large enough to tell the strategies apart
  std::optional<Degrees> degrees_;  // in this one
  std::vector<std::string> problems_;
};

/// A number that was cast to an enumeration may be none of its values.
bool Refusals::has_known_values() {
  const auto check = [this](const char* name, auto value, auto last) {
    if (value <= last) return;
    refuse(name, ": got ", static_cast<int>(value), ", expected 0 to ", static_cast<int>(last));
  };
  check("strategy", options_.strategy, Strategy::kHybrid);
  check("buffers", options_.buffers, BufferSync::kMean);
  check("reproducible", options_.reproducible, Reproducible::kAnyWorldSize);
  check("offload", options_.offload, Offload::kParameters);
  check("on_non_finite", options_.on_non_finite.value_or(NonFinite::kStop), NonFinite::kSkip);
  return problems_.empty();
}

constexpr int kManyRanks = 2;

void Refusals::check_degrees() {
  const bool is_hybrid = options_.strategy == Strategy::kHybrid;
  if (options_.degrees.has_value() && !is_hybrid) {
    refuse("degrees: got ", to_string(*options_.degrees), " beside strategy ", strategy_,
           "; allowed with strategy hybrid only; leave one of the two out");
  }
  if (is_hybrid && !options_.degrees.has_value()) {
    refuse("degrees: got none; strategy hybrid needs them; set {parameters, gradients, optimizer}");
    return;
  }
  shape_ = is_hybrid ? *options_.degrees : placement(options_, kManyRanks);
  if (world_ == nullptr) return;
  const std::string problem = is_hybrid ? problem_of(*shape_, world_->size) : "";
  if (!problem.empty()) return refuse("degrees: ", problem);
  degrees_ = placement(options_, world_->size);
  if (degrees_->parameters > 1 && options_.reshard_after_forward.has_value()) check_reshard();
}

void Refusals::check_reshard() {
  const int all = degrees_->parameters;
  const int ranks = *options_.reshard_after_forward;
  if (ranks < 1 || all % ranks != 0) {
    refuse("reshard_after_forward: got ", ranks, ", expected a divisor of the ", all,
           " ranks that parameters are split over; 1 keeps units whole, leave it out to free them");
  } else if (!world_->can.one_sided_reads && ranks != 1 && ranks != all) {
    refuse("reshard_after_forward: got ", ranks, ", expected 1 or the ", all,
           " ranks that parameters are split over, because ranks of backend '", world_->backend,
           "' cannot read each other's memory; leave it out");
  }
}

/// The one rule for all: what the strategy would ignore is an error.
void Refusals::check_strategy() {
  if (!shape_.has_value()) return;
  const Options defaults;
  for (const OptionField& field : option_fields()) {
    if (field.text(options_) == field.text(defaults)) continue;
    const std::string problem = ignored(field, options_, *shape_, strategy_);
    if (!problem.empty()) refuse(field.name, ": ", problem);
  }
}

/// Functions of the user's that choose nothing, or nothing that is left.
void Refusals::check_choices(const ParameterTable* model) {
  const WrapPolicy& wrap = options_.wrap;
  if (!wrap.choose && !wrap.name.empty()) {
    refuse("wrap: got the name '", wrap.name,
           "' without choose, which would be ignored; set choose too (wrap_if() sets both), or "
           "leave both out");
  }
  if (options_.ignores && model != nullptr && model->size() == 0) {
    refuse(
        "ignores: leaves the engine none of the model's parameters; leave some to it, or train "
        "without an engine");
  }
}

// Written so that NaN fails too.
void Refusals::check_numerics() {
  const auto check = [this](const char* name, double value, bool is_right, const char* allowed) {
    if (is_right) return;
    refuse("loss_scale.", name, ": got ", number_text(value), "; allowed ", allowed,
           "; the default suits most models");
  };
  const LossScale scale = options_.loss_scale.value_or(LossScale{});
  check("initial", scale.initial, is_fp32_factor(scale.initial), "1.2e-38 to 3.4e38");
  check("growth", scale.growth, scale.growth >= 1.0 && std::isfinite(scale.growth),
        "[1, infinity)");
  check("backoff", scale.backoff, scale.backoff > 0.0 && scale.backoff <= 1.0, "(0, 1]");
  check("growth_interval", static_cast<double>(scale.growth_interval), scale.growth_interval >= 1,
        "1 or more");
  if (options_.ask_non_finite && options_.on_non_finite.has_value()) {
    refuse("on_non_finite: got a policy beside ask_non_finite; set one of the two");
  }
}

/// How gradients are reduced and clipped.
void Refusals::check_gradients() {
  const auto check = [this](const std::string& name, double value, const char* remedy) {
    if (value > 0.0) return;
    refuse(name, ": got ", number_text(value), "; allowed (0, infinity]; ", remedy);
  };
  constexpr const char* kNoClipping = "leave it out to train without clipping";
  check("max_grad_norm", options_.max_grad_norm, kNoClipping);
  check("grad_norm_type", options_.grad_norm_type, "leave it out for the 2-norm");
  for (const auto& [group, norm] : options_.max_grad_norm_by_group) {
    check(absl::StrCat("max_grad_norm_by_group of '", group, "'"), norm, kNoClipping);
  }
  check("max_grad_value", options_.max_grad_value, kNoClipping);
  if (!options_.max_grad_norm_by_group.empty() && !std::isinf(options_.max_grad_norm)) {
    refuse("max_grad_norm_by_group: is set beside max_grad_norm; leave one of the two out");
  }
  const double factor = options_.gradient_divide_factor.value_or(1.0);
  if (!is_fp32_factor(factor)) {
    refuse("gradient_divide_factor: got ", number_text(factor),
           "; allowed 1.2e-38 to 3.4e38; leave it out for the mean over ranks");
  }
  if (world_ != nullptr && !is_on_cpu()) check_gradients_on_device();
}

/// What the kernels and NCCL have not.
void Refusals::check_gradients_on_device() {
  if (options_.gradient_divide_factor.value_or(world_->size) != world_->size) {
    refuse("gradient_divide_factor: got ", number_text(*options_.gradient_divide_factor),
           ", but reductions on a GPU divide by the number of ranks (", world_->size,
           ") only; leave it out, and multiply the loss");
  }
  if (options_.offload != Offload::kNone) return;
  const auto refuse_kernel = [this](const char* name, const char* reason) {
    refuse(name, ": is set, but the kernels of a GPU ", reason,
           "; leave it out, or set offload, which clips on the host");
  };
  if (options_.grad_norm_type != 2.0) refuse_kernel("grad_norm_type", "take the 2-norm only");
  if (!options_.max_grad_norm_by_group.empty()) {
    refuse_kernel("max_grad_norm_by_group", "take one norm of all gradients");
  }
  if (!std::isinf(options_.max_grad_value)) {
    refuse_kernel("max_grad_value", "do not clip by value");
  }
}

/// What is wrong with the precision whatever the model's dtype is.
void Refusals::check_precision() {
  std::vector<std::string> always = problems_of(options_.precision, at::kFloat);
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    const std::vector<std::string> here = problems_of(options_.precision, dtype);
    std::erase_if(always, [&](const auto& one) { return std::ranges::count(here, one) == 0; });
  }
  for (const std::string& problem : always) refuse(problem);
}

/// Each problem with the first parameter that has it.
void Refusals::check_precision(const ParameterTable& model) {
  std::vector<std::string> said;
  for (const Parameter& parameter : model) {
    for (const std::string& problem :
         problems_of(parameter.precision(options_.precision), parameter.tensor.scalar_type())) {
      if (std::ranges::count(said, problem) > 0) continue;
      said.push_back(problem);
      refuse("parameter '", parameter.name, "': ", problem);
    }
    const auto wanted = options_.precision.parameters;
    if (parameter.keeps_dtype && wanted.has_value() &&
        c10::elementSize(*wanted) > parameter.tensor.itemsize()) {
      refuse("parameter '", parameter.name, "': precision.parameters: got ", c10::toString(*wanted),
             ", wider than the statistics of its BatchNorm, which stay ",
             c10::toString(parameter.tensor.scalar_type()),
             "; convert the whole model before parallelize");
    }
  }
}

void Refusals::check_bucket_bytes(int64_t cap) {
  constexpr int64_t kMin = int64_t{1} << 10;
  constexpr int64_t kMax = int64_t{2} << 30;
  if (cap >= kMin && cap <= kMax) return;
  refuse("bucket_bytes: got ", cap,
         "; allowed 1 KiB (1024) to 2 GiB (2147483648); the default suits most models");
}

void Refusals::check_units_in_reduction() {
  constexpr int kMax = 1024;
  const int units = *options_.units_in_reduction;
  if (units < 1 || units > kMax) {
    refuse("units_in_reduction: got ", units, "; allowed 1 to ", kMax,
           "; the default suits most models");
  }
  if (world_ != nullptr && !is_on_cpu()) {
    refuse(
        "units_in_reduction: is set, but on a GPU the order of its streams decides; leave it out");
  }
}

void Refusals::check_average(const WeightAverage& average) {
  for (const std::string& problem : problems_of(average)) refuse(problem);
  if (world_ != nullptr && !is_on_cpu() && options_.offload == Offload::kNone) {
    refuse(
        "average: is set, but the parameters are updated on a GPU, which has no kernel for it; set "
        "offload to update on the host, or leave it out");
  }
}

/// What needs all gradients of a step before the first update, or updates that can be left out.
void Refusals::check_optimizer_in_backward() {
  const auto refuse_beside = [this](const char* name, const char* reason) {
    refuse("optimizer_in_backward: is set beside ", name, ", which ", reason,
           "; leave one of the two out");
  };
  if (options_.offload != Offload::kNone) refuse_beside("offload", "updates in step()");
  if (!std::isinf(options_.max_grad_norm)) {
    refuse_beside("max_grad_norm", "needs the norm of all gradients before the first update");
  }
  if (!options_.max_grad_norm_by_group.empty()) {
    refuse_beside("max_grad_norm_by_group", "needs norms of all gradients before the first update");
  }
  if (!std::isinf(options_.max_grad_value)) {
    refuse_beside("max_grad_value", "clips in step()");
  }
  if (options_.grad_norm_type != 2.0) {
    refuse_beside("grad_norm_type", "is of the norm that step() takes");
  }
  if (options_.loss_scale.has_value()) {
    refuse_beside("loss_scale", "leaves out the update of a step whose gradients overflow");
  }
  if (options_.ask_non_finite) {
    refuse_beside("ask_non_finite", "may leave out the update of a step that is partly made");
  }
  if (options_.on_non_finite == NonFinite::kSkip) {
    refuse_beside("on_non_finite = kSkip", "leaves out the update of a step that is partly made");
  }
  if (world_ != nullptr && !is_on_cpu()) {
    refuse("optimizer_in_backward: is set, but works on a CPU only; leave it out");
  }
  // Named strategies split over all ranks or none, also in a world of one.
  const bool is_named = options_.strategy != Strategy::kHybrid;
  const int ranks = is_named ? kManyRanks : world_ != nullptr ? world_->size : 0;
  if (!shape_.has_value() || ranks == 0) return;
  if (shape_->gradients == ranks && shape_->optimizer == ranks) return;
  const std::string reason =
      degrees_.has_value()
          ? absl::StrCat("splits gradients over ", degrees_->gradients, " and the optimizer over ",
                         degrees_->optimizer, " of ", world_->size, " ranks")
          : "does not split gradients and the optimizer over all ranks";
  refuse("optimizer_in_backward: is set, but strategy ", strategy_, " ", reason,
         ", and backward can update only slices that belong to one rank; leave it out, or use a "
         "strategy that splits both over all ranks (zero2, zero3)");
}

void Refusals::check_offload() {
  if (is_on_cpu()) {
    refuse(
        "offload: is set, but parameters lie on the CPU, where everything is in the host's memory; "
        "leave it out, or train on a GPU");
  }
  if (options_.offload != Offload::kParameters || !shape_.has_value()) return;
  if (shape_->parameters == 1) {
    refuse("offload: got parameters, but strategy ", strategy_,
           " keeps them whole at all times; use a strategy that splits them (zero3), or offload "
           "the optimizer only");
  } else if (shape_->optimizer > shape_->parameters) {
    refuse("offload: got parameters, but degrees ", to_string(*shape_),
           " let a rank update only a part of its parameter shard, and the rest would have to be "
           "copied from other ranks' hosts; split parameters over as many ranks as the optimizer, "
           "or offload the optimizer only");
  }
}

/// What a host has to do in the middle of a step, which then waits for it.
void Refusals::check_asynchronous_step() {
  const auto refuse_beside = [this](const char* name, const char* reason) {
    refuse("asynchronous_step: is true beside ", name, ", which ", reason,
           "; leave one of the two out");
  };
  if (options_.ask_non_finite)
    refuse_beside("ask_non_finite", "is asked before anything is applied");
  if (options_.offload != Offload::kNone) {
    refuse_beside("offload", "updates on the CPU, in the step");
  }
  if (is_on_cpu()) {
    refuse(
        "asynchronous_step: is true, but parameters lie on the CPU, where steps are synchronous; "
        "leave it out");
  }
  if (shape_.has_value() && keeps_partial_sums(*shape_)) {
    refuse("asynchronous_step: is true, but degrees ", to_string(*shape_),
           " keep partial sums, for which ranks wait for each other in step(); leave it out");
  }
}

void Refusals::check_cuda_graphs() {
  const auto refuse_because = [this](const auto&... reason) {
    refuse("cuda_graphs: is set, but ", reason..., "; leave it out");
  };
  if (is_on_cpu()) refuse_because("parameters lie on the CPU");
  if (world_->size > 1) {
    refuse_because("collectives are not captured, and there are ", world_->size, " ranks");
  }
  if (options_.free_eagerly || options_.offload == Offload::kParameters) {
    refuse_because("the host gathers and frees units (free_eagerly, offload)");
  }
  if (options_.offload == Offload::kOptimizer) {
    refuse_because("gradients are copied to the host in backward (offload)");
  }
}

}  // namespace

absl::Status validate(const Options& options) {
  return validate(options, /*model=*/nullptr, /*world=*/nullptr);
}

namespace internal {

absl::Status validate(const Options& options, const ParameterTable* model,
                      const WorldTraits* world) {
  return Refusals(options, model, world).status();
}

}  // namespace internal
}  // namespace tessera
