#include "tessera/core/reduce/gradient_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/layout/readable.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"

namespace tessera::internal {

namespace {

/// Returns what is wrong with a hook's result; "" if it is valid.
std::string problem_of(const at::Tensor& result, const at::Tensor& buffer) {
  const auto expected = [&](const std::string& got) {
    return absl::StrCat("returned ", got, ", expected ", buffer.numel(), " elements of ",
                        c10::toString(buffer.scalar_type()), " on ", buffer.device().str(),
                        ", as the bucket's buffer has");
  };
  if (!result.defined()) return expected("an undefined tensor");
  if (result.layout() != at::kStrided || result.numel() != buffer.numel() ||
      result.scalar_type() != buffer.scalar_type() || result.device() != buffer.device()) {
    return expected(absl::StrCat(
        result.layout() == at::kStrided ? "" : "a sparse tensor of ", result.numel(),
        " elements of ", c10::toString(result.scalar_type()), " on ", result.device().str()));
  }
  return "";
}

}  // namespace

GradientCommunicator::GradientCommunicator(ProcessGroup& group, const ParameterTable& table,
                                           size_t buckets, const SliceMap& slices, SumOrder order,
                                           const RegisteredHook* registered)
    : all_(group),
      table_(table),
      buckets_(buckets),
      order_(order),
      registered_(registered),
      counted_(group),
      is_whole_(slices.degrees().optimizer == 1),
      gradient_slice_(slices.gradient_slice()),
      atom_(slices.atom()),
      atom_across_sums_(slices.atom() %
                        (slices.world_size() / std::max(slices.degrees().gradients, 1))) {
  using Axis = SliceMap::Axis;
  const int replicas = slices.extent(Axis::kReplicas);
  if (replicas > 1 && replicas < group.size()) {
    replicas_ = split(group, slices.colors({Axis::kReplicas}), "reduce replicas");
  }
  if (order == SumOrder::kRanks && tessera::keeps_partial_sums(slices.degrees())) {
    within_sums_ =
        split(group, slices.colors({Axis::kParameters, Axis::kGradients}), "reduce within");
    across_sums_ =
        split(group, slices.colors({Axis::kOptimizer, Axis::kReplicas}), "reduce across");
  }
}

std::shared_ptr<Work> GradientCommunicator::start(Level level, const PlannedUnit& unit,
                                                  const at::Tensor& full, const at::Tensor& part,
                                                  ReduceOp op, double divisor) {
  if (hook() != nullptr) {
    TORCH_INTERNAL_ASSERT(level == Level::kMicroStep && op == ReduceOp::kAvg);
    run_hook(unit, full, divisor);
    return completed_work();
  }
  Collective call{.op = Op::kReduceScatter,
                  .output = part,
                  .input = full,
                  .reduce = op,
                  .divisor = divisor,
                  .slice = atom_,
                  .posted = true,
                  .tag = unit.name};
  if (level == Level::kStep) {
    call.slice = atom_across_sums_;
    return across_sums_->check_and_run(call);
  }
  if (keeps_partial_sums()) {
    call.slice = gradient_slice_;
    return within_sums_->check_and_run(call);
  }
  call.order = order_;
  if (is_whole_) {
    call.op = Op::kAllReduce;
    call.output = full;
    call.slice = -1;
  }
  return all_.check_and_run(call);
}

std::shared_ptr<Work> GradientCommunicator::advance(Level level, const PlannedUnit& unit,
                                                    const at::Tensor& part, const at::Tensor& whole,
                                                    std::shared_ptr<Work> after) {
  if (hook() != nullptr || stages(level) == 1) return nullptr;
  return replicas_->check_and_run({.op = Op::kAllGather,
                                   .output = whole,
                                   .input = part,
                                   .posted = true,
                                   .after = std::move(after),
                                   .tag = unit.name});
}

/// Runs the hook on `full` and copies its result, the mean over ranks, into `full`.
void GradientCommunicator::run_hook(const PlannedUnit& unit, const at::Tensor& full,
                                    double divisor) {
  GradBucket bucket;
  bucket.index = unit.index;
  bucket.is_last = ++started_ == buckets_;
  bucket.name = unit.name;
  bucket.buffer = full;
  bucket.divisor = divisor == 0.0 ? all_.size() : divisor;
  for (size_t position = 0; position < unit.parameters.size(); ++position) {
    const Parameter& parameter = table_[unit.parameters[position]];
    bucket.gradients.push_back(
        view_like(full, unit.layout.parameter_range(position), parameter.tensor));
    bucket.parameters.push_back(parameter.tensor);
    bucket.names.push_back(parameter.name);
  }
  const int64_t before = counted_.bytes();
  const at::Tensor result = result_of_hook(bucket);
  hook_bytes_ = counted_.bytes() - before;
  const at::Tensor values = in_memory(result).reshape({-1});
  if (values.const_data_ptr() != full.const_data_ptr()) full.copy_(values);
}

/// Returns what the hook returns for `bucket`. If the hook throws, or its result is not valid,
/// throws on this rank only; the engine then notifies the other ranks.
at::Tensor GradientCommunicator::result_of_hook(const GradBucket& bucket) {
  std::string problem;
  at::Tensor result;
  try {
    result = registered_->run(bucket, counted_);
    problem = problem_of(result, bucket.buffer);
  } catch (const CommError&) {
    throw;
  } catch (...) {
    problem = absl::StrCat("threw: ", present_error_text());
  }
  TORCH_CHECK(problem.empty(), "[comm hook] '", hook()->name(), "' for ", bucket.name, ": ",
              problem);
  return result;
}

}  // namespace tessera::internal
