#pragma once

#include <optional>
#include <string>

#include "tessera/core/reduce/backward_agreement.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The weights of a step's backwards (BackwardOptions::weight): this rank's as they come, those of
/// all ranks as they are exchanged at the end of each backward that reduces. Note [Weights] in
/// step_weight.cc. Used by one thread.
class StepWeight {
 public:
  /// `group` must outlive it.
  StepWeight(ProcessGroup& group, const UnitPlan& plan);

  /// A backward of this rank begins with `weight`, or without one. A weight that is no weight
  /// counts as 0, and problem() says so. Collective under needs_unit() in the first backward of a
  /// step that has a weight; else local.
  void begin(std::optional<double> weight);

  /// Whether the first backward with a weight of each step agrees on a unit of weight.
  bool needs_unit() const { return units_.has_value(); }

  /// What the gradients of the backward that has begun are multiplied with.
  double factor() const { return factor_; }

  /// What this rank says at the end of a backward of what it has begun since the last exchange.
  BackwardAgreement::Report report() const { return mine_; }
  /// All ranks have said it.
  void collect(const BackwardAgreement& agreement);

  /// What is wrong with the weights of this step; "" if nothing. What collect() finds all ranks
  /// find.
  const std::string& problem() const { return problem_; }

  /// Whether the step has weights.
  bool is_weighted() const { return has_weighted_; }
  /// Their sum over all ranks; unset if it has none. Equal on all ranks.
  std::optional<double> sum() const;
  /// By what the step's reduced gradients, divided by the number of ranks, must still be divided to
  /// be the weighted mean; 1 without weights or if they are zero. Equal on all ranks.
  double divisor() const;

  /// The step is over, or its gradients are dropped.
  void clear();

  int64_t bytes() const { return units_.has_value() ? units_->bytes() : 0; }

 private:
  double agreed_unit(double weight);

  ProcessGroup& group_;
  std::optional<HostAllGather> units_;  // where gradients are sent in fp16
  BackwardAgreement::Report mine_;      // since the last exchange
  bool has_plain_ = false;              // in this step, on this rank or any
  bool has_weighted_ = false;
  double sum_ = 0.0;  // of what was exchanged
  double factor_ = 1.0;
  std::optional<double> unit_;  // of weight, in this step
  std::string problem_;
};

/// What is wrong with `weight`; "" if nothing. Local.
std::string problem_of_weight(const std::optional<double>& weight);

}  // namespace tessera::internal
