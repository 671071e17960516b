#include "tessera/core/options/option_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"

namespace tessera::internal {

void check_degrees(const OptionCase& known, const RefuseOption& refuse) {
  const Options& options = known.options;
  const bool is_hybrid = options.strategy == Strategy::kHybrid;
  if (options.degrees.has_value() && !is_hybrid) {
    refuse(absl::StrCat("got ", to_string(*options.degrees), " beside strategy ", known.strategy,
                        "; allowed with strategy hybrid only; leave one of the two out"));
  }
  if (!is_hybrid) return;
  if (!options.degrees.has_value()) {
    return refuse("got none; strategy hybrid needs them; set {parameters, gradients, optimizer}");
  }
  if (known.world == nullptr) return;
  const std::string problem = problem_of(*options.degrees, known.world->size);
  if (!problem.empty()) refuse(problem);
}

/// Refuses a policy that has a name but no function.
void check_wrap(const OptionCase& known, const RefuseOption& refuse) {
  const WrapPolicy& wrap = known.options.wrap;
  if (wrap.choose || wrap.name.empty()) return;
  refuse(absl::StrCat("got the name '", wrap.name,
                      "' without choose, which would be ignored; set choose too (wrap_if() sets "
                      "both), or leave both out"));
}
void check_ignores(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.options.ignores || known.model == nullptr || known.model->size() > 0) return;
  refuse(
      "leaves the engine none of the model's parameters; leave some to it, or train without an "
      "engine");
}

void check_reshard(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.degrees.has_value() || known.degrees->parameters == 1) return;
  if (!known.options.reshard_after_forward.has_value()) return;
  const int all = known.degrees->parameters;
  const int ranks = *known.options.reshard_after_forward;
  if (ranks < 1 || all % ranks != 0) {
    refuse(absl::StrCat("got ", ranks, ", expected a divisor of the ", all,
                        " ranks that parameters are split over; 1 keeps units whole, leave it out "
                        "to free them"));
  } else if (!known.world->can.one_sided_reads && ranks != 1 && ranks != all) {
    refuse(absl::StrCat("got ", ranks, ", expected 1 or the ", all,
                        " ranks that parameters are split over, because ranks of backend '",
                        known.world->backend, "' cannot read each other's memory; leave it out"));
  }
}

void check_group_norms(const OptionCase& known, const RefuseOption& refuse) {
  for (const auto& [group, norm] : known.options.max_grad_norm_by_group) {
    if (norm > 0.0) continue;
    refuse(absl::StrCat("got ", number_text(norm), " for '", group, "'; allowed (0, infinity]; ",
                        kNoClipping));
  }
}

void check_divide_factor(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.options.gradient_divide_factor.has_value()) return;
  const double factor = *known.options.gradient_divide_factor;
  if (!is_fp32_factor(factor)) {
    refuse(absl::StrCat("got ", number_text(factor),
                        "; allowed 1.2e-38 to 3.4e38; leave it out for the mean over ranks"));
  }
  if (known.is_on_gpu() && factor != known.world->size) {
    refuse(absl::StrCat("got ", number_text(factor),
                        ", but reductions on a GPU divide by the number of ranks (",
                        known.world->size, ") only; leave it out, and multiply the loss"));
  }
}

void check_loss_scale(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.options.loss_scale.has_value()) return;
  const LossScale& scale = *known.options.loss_scale;
  const auto check = [&](const char* name, double value, bool is_right, const char* allowed) {
    if (is_right) return;
    refuse(absl::StrCat(".", name, ": got ", number_text(value), "; allowed ", allowed,
                        "; the default suits most models"));
  };
  check("initial", scale.initial, is_fp32_factor(scale.initial), "1.2e-38 to 3.4e38");
  check("growth", scale.growth, scale.growth >= 1.0 && std::isfinite(scale.growth),
        "[1, infinity)");
  check("backoff", scale.backoff, scale.backoff > 0.0 && scale.backoff <= 1.0, "(0, 1]");
  check("growth_interval", static_cast<double>(scale.growth_interval), scale.growth_interval >= 1,
        "1 or more");
}

void check_average(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.options.average.has_value()) return;
  for (const std::string& problem : problems_of(*known.options.average)) {
    refuse(std::string(absl::StripPrefix(problem, "average")));
  }
}

/// Checks the precision of each parameter. Without a model, refuses only what would be wrong for
/// parameters of every dtype.
void check_precision(const OptionCase& known, const RefuseOption& refuse) {
  const Precision& precision = known.options.precision;
  if (known.model == nullptr) {
    std::vector<std::string> always = problems_of(precision, at::kFloat);
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
      const std::vector<std::string> here = problems_of(precision, dtype);
      std::erase_if(always, [&](const auto& one) { return std::ranges::count(here, one) == 0; });
    }
    for (const std::string& problem : always) {
      refuse(std::string(absl::StripPrefix(problem, "precision")));
    }
    return;
  }
  // The problems reported so far. Each problem is reported once, for the first parameter that has
  // it.
  std::vector<std::string> said;
  for (const Parameter& parameter : *known.model) {
    for (const std::string& problem :
         problems_of(parameter.precision(precision), parameter.tensor.scalar_type())) {
      if (std::ranges::count(said, problem) > 0) continue;
      said.push_back(problem);
      refuse(absl::StrCat("parameter '", parameter.name, "': ", problem));
    }
    const auto wanted = precision.parameters;
    if (parameter.keeps_dtype && wanted.has_value() &&
        c10::elementSize(*wanted) > static_cast<size_t>(parameter.tensor.itemsize())) {
      refuse(absl::StrCat("parameter '", parameter.name, "': precision.parameters: got ",
                          c10::toString(*wanted),
                          ", wider than the statistics of its BatchNorm, which stay ",
                          c10::toString(parameter.tensor.scalar_type()),
                          "; convert the whole model before parallelize"));
    }
  }
}

void check_bucket_bytes(const OptionCase& known, const RefuseOption& refuse) {
  constexpr int64_t kMin = int64_t{1} << 10;
  constexpr int64_t kMax = int64_t{2} << 30;
  for (const int64_t cap : known.options.bucket_bytes) {
    if (cap >= kMin && cap <= kMax) continue;
    refuse(absl::StrCat("got ", cap,
                        "; allowed 1 KiB (1024) to 2 GiB (2147483648); the default suits most "
                        "models"));
  }
}

void check_offload(const OptionCase& known, const RefuseOption& refuse) {
  if (known.options.offload != Offload::kParameters || !known.shape.has_value()) return;
  if (known.shape->parameters == 1) {
    refuse(absl::StrCat("got parameters, but strategy ", known.strategy,
                        " keeps them whole at all times; use a strategy that splits them (zero3), "
                        "or offload the optimizer only"));
  } else if (known.shape->optimizer > known.shape->parameters) {
    refuse(absl::StrCat("got parameters, but degrees ", to_string(*known.shape),
                        " let a rank update only a part of its parameter shard, and the rest would "
                        "have to be copied from other ranks' hosts; split parameters over as many "
                        "ranks as the optimizer, or offload the optimizer only"));
  }
}

void check_asynchronous_step(const OptionCase& known, const RefuseOption& refuse) {
  if (!is_asynchronous(known.options) || !known.shape.has_value()) return;
  if (!keeps_partial_sums(*known.shape)) return;
  refuse(absl::StrCat("is set, but degrees ", to_string(*known.shape),
                      " keep partial sums, for which ranks wait for each other in step(); leave it "
                      "out"));
}

void check_cuda_graphs(const OptionCase& known, const RefuseOption& refuse) {
  if (!known.options.cuda_graphs || known.world == nullptr || known.world->size == 1) return;
  refuse(absl::StrCat("is set, but collectives are not captured, and there are ", known.world->size,
                      " ranks; leave it out"));
}

bool is_asynchronous(const Options& options) { return options.asynchronous_step.value_or(false); }

}  // namespace tessera::internal
