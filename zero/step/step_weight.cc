#include "tessera/zero/step/step_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"

namespace tessera::internal {

// Note [Weights]
// A rank contributes its gradient g times its weight w. The gradient is multiplied as it is copied
// into its unit's buffer. If the loss were multiplied instead, a 16-bit loss would round the
// weight, and the gradients of activations could overflow. The reduction divides by the number of
// ranks N, as without weights. The weighted mean needs another factor, N / sum(w). It is known when
// all ranks have exchanged their weights at the end of a backward, in an exchange that they make
// anyway. The norm and the update are multiplied by it, as by the inverse of the loss scale, so it
// costs no pass over gradients. Every rank computes it from the same numbers in the same order,
// under every strategy. For weights of 1 and one backward the factor is 1, and the bits are the
// same as without weights.
//
// Where gradients are sent or summed in fp16, w * g might overflow. There ranks also exchange their
// weights before the first backward of a step, and contribute (w / u) * g, where u is a power of
// two above the largest of these weights.

namespace {

bool has_half(const UnitPlan& plan) {
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    const UnitPrecision& precision = plan[unit].precision;
    if (precision.communication == at::kHalf || precision.reduce == at::kHalf) return true;
  }
  return false;
}

constexpr const char* kMixed =
    "; give every backward of a step a weight (engine->backward()), on all ranks, or none; "
    "engine->zero_grad() on all ranks drops these gradients";

}  // namespace

std::string problem_of_weight(const std::optional<double>& weight) {
  if (!weight.has_value() || *weight == 0.0 || is_fp32_factor(*weight)) return "";
  return absl::StrCat("backward: got weight ", number_text(*weight),
                      ", expected 0, or a finite number from 1.2e-38 to 3.4e38; pass how many "
                      "samples or tokens the loss is a mean over");
}

StepWeight::StepWeight(ProcessGroup& group, const UnitPlan& plan) : group_(group) {
  if (has_half(plan)) units_.emplace(group, /*words=*/1);
}

void StepWeight::begin(std::optional<double> weight) {
  if (const std::string wrong = problem_of_weight(weight); !wrong.empty()) {
    if (problem_.empty()) {
      problem_ = absl::StrCat(wrong, "; engine->zero_grad() on all ranks drops these gradients");
    }
    weight = 0.0;
  }
  const bool is_mixed = weight.has_value() ? has_plain_ : has_weighted_;
  if (is_mixed && problem_.empty()) {
    problem_ = absl::StrCat("backward: got a loss ", weight.has_value() ? "with" : "without",
                            " a weight in a step that has others ",
                            weight.has_value() ? "without" : "with", kMixed);
  }
  (weight.has_value() ? has_weighted_ : has_plain_) = true;
  (weight.has_value() ? mine_.has_weighted : mine_.has_plain) = true;
  factor_ = 1.0;
  if (!weight.has_value()) {
    mine_.weight += 1.0;
    return;
  }
  if (units_.has_value() && !unit_.has_value()) unit_ = agreed_unit(*weight);
  factor_ = *weight / unit_.value_or(1.0);
  mine_.weight += *weight;
}

/// Returns a power of two above the weights of all ranks. Collective.
double StepWeight::agreed_unit(double weight) {
  units_->mine()[0] = std::bit_cast<int64_t>(weight);
  units_->exchange("unit of weight");
  double largest = 0.0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    largest = std::max(largest, std::bit_cast<double>(units_->of(rank)[0]));
  }
  int exponent = 0;
  return std::frexp(largest, &exponent) == 0.0 ? 1.0 : std::ldexp(1.0, exponent);
}

void StepWeight::collect(const BackwardAgreement& agreement) {
  int plain = -1;
  int weighted = -1;
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    const BackwardAgreement::Report report = agreement.report_of(rank);
    if (report.has_plain) plain = rank;
    if (report.has_weighted) weighted = rank;
  }
  double most = 0.0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const double weight = agreement.report_of(rank).weight;
    sum_ += weight;
    most = std::max(most, weight);
  }
  backwards_ += most;
  mine_ = {};
  has_plain_ = has_plain_ || plain >= 0;
  has_weighted_ = has_weighted_ || weighted >= 0;
  if (problem_.empty() && has_plain_ && has_weighted_) {
    problem_ = absl::StrCat(
        "backward: got losses with and without a weight in one step",
        plain >= 0 && weighted >= 0
            ? absl::StrCat(" (with one on rank ", weighted, ", without on rank ", plain, ")")
            : "",
        kMixed);
  }
}

std::optional<double> StepWeight::sum() const {
  return has_weighted_ ? std::optional(sum_) : std::nullopt;
}

double StepWeight::divisor() const {
  if (sum_ == 0.0 || (!has_weighted_ && !divides_step_)) return 1.0;
  const double each = has_weighted_ ? unit_.value_or(1.0) : backwards_;
  return sum_ / (static_cast<double>(group_.size()) * each);
}

void StepWeight::clear() {
  mine_ = {};
  has_plain_ = false;
  has_weighted_ = false;
  sum_ = 0.0;
  backwards_ = 0.0;
  divides_step_ = divides_by_active_;
  factor_ = 1.0;
  unit_.reset();
  problem_.clear();
}

}  // namespace tessera::internal
