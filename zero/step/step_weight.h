#pragma once

#include <optional>
#include <string>

#include "tessera/core/reduce/backward_agreement.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The weights of a step's backwards (BackwardOptions::weight). Takes this rank's weight when a
/// backward begins, and the weights of all ranks in the exchange at the end of each backward that
/// reduces. Note [Weights] in step_weight.cc. Used by one thread.
class StepWeight {
 public:
  /// `group` must outlive it.
  StepWeight(ProcessGroup& group, const UnitPlan& plan);

  /// Called when a backward of this rank begins, with `weight` or without one. An invalid weight
  /// counts as 0 and sets problem(). Local, with one exception: where gradients are sent or summed
  /// in fp16, the first call with a weight in a step is collective.
  void begin(std::optional<double> weight);

  /// If `divides`, gradients of steps without weights are divided by the mean, over the step's
  /// backwards, of the number of ranks that had a loss; otherwise by the number of all ranks.
  void divide_by_active(bool divides) {
    divides_by_active_ = divides;
    divides_step_ = divides_step_ || divides;
  }

  /// Returns the factor for the gradients of the backward that has begun.
  double factor() const { return factor_; }

  /// Returns this rank's report on the backwards begun since the last exchange. It is to be
  /// exchanged at the end of a backward.
  BackwardAgreement::Report report() const { return mine_; }
  /// Takes the reports of all ranks.
  void collect(const BackwardAgreement& agreement);

  /// Returns what is wrong with the weights of this step; "" if nothing. After collect() all ranks
  /// find the same problems.
  const std::string& problem() const { return problem_; }

  /// Returns true if the step has weights.
  bool is_weighted() const { return has_weighted_; }
  /// Returns the sum of the weights over all ranks; unset if the step has none. Equal on all ranks.
  std::optional<double> sum() const;
  /// Returns the divisor that turns the step's reduced gradients, which are already divided by the
  /// number of ranks, into the weighted mean or into the mean over the ranks that had a loss. 1 if
  /// the step needs neither or the sum is zero. Equal on all ranks.
  double divisor() const;

  /// Called when the step is over or its gradients are dropped.
  void clear();

  int64_t bytes() const { return units_.has_value() ? units_->bytes() : 0; }

 private:
  double agreed_unit(double weight);

  ProcessGroup& group_;
  std::optional<HostAllGather> units_;  // set where gradients are sent or summed in fp16
  BackwardAgreement::Report mine_;      // since the last exchange
  bool has_plain_ = false;              // a loss of this step, on any rank, had no weight
  bool has_weighted_ = false;
  bool divides_by_active_ = false;
  // True if divides_by_active_ was true at any time in this step; then divisor() counts active
  // ranks.
  bool divides_step_ = false;
  double sum_ = 0.0;  // of the weights of all ranks; a loss without a weight counts as 1
  // For steps without weights. Each exchange adds the number of backwards of the rank that reports
  // the most in that exchange.
  double backwards_ = 0.0;
  double factor_ = 1.0;
  // The power of two by which this step's weights are divided. Unset if they are not divided.
  std::optional<double> unit_;
  std::string problem_;
};

/// Returns what is wrong with `weight`; "" if nothing. Local.
std::string problem_of_weight(const std::optional<double>& weight);

}  // namespace tessera::internal
