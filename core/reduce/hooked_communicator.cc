#include "tessera/core/reduce/hooked_communicator.h"

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

absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }

/// What is wrong with a hook's result; "" if nothing.
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

HookedCommunicator::HookedCommunicator(std::unique_ptr<GradientCommunicator> plain,
                                       ProcessGroup& group, const ParameterTable& table,
                                       size_t buckets, const RegisteredHook& registered)
    : plain_(std::move(plain)),
      group_(group),
      table_(table),
      buckets_(buckets),
      registered_(registered) {}

std::shared_ptr<Work> HookedCommunicator::start(Level level, const PlannedUnit& unit,
                                                const at::Tensor& full, const at::Tensor& part,
                                                ReduceOp op, double divisor) {
  if (registered_.hook() == nullptr) {
    return plain_->start(level, unit, full, part, op, divisor);
  }
  TORCH_INTERNAL_ASSERT(level == Level::kMicroStep && op == ReduceOp::kAvg);
  GradBucket bucket;
  bucket.index = unit.index;
  bucket.is_last = ++started_ == buckets_;
  bucket.name = unit.name;
  bucket.buffer = full;
  bucket.divisor = divisor == 0.0 ? group_.size() : divisor;
  for (size_t position = 0; position < unit.parameters.size(); ++position) {
    const Parameter& parameter = table_[unit.parameters[position]];
    bucket.gradients.push_back(
        view_like(full, unit.layout.parameter_range(position), parameter.tensor));
    bucket.parameters.push_back(parameter.tensor);
    bucket.names.push_back(parameter.name);
  }
  const int64_t before = group_.bytes();
  const at::Tensor result = run(bucket);
  sent_bytes_ = group_.bytes() - before;
  const at::Tensor values = in_memory(result).reshape({-1});
  if (values.const_data_ptr() != full.const_data_ptr()) full.copy_(values);
  return completed_work();
}

/// An exception of the hook concerns this rank only, until the engine tells the others.
at::Tensor HookedCommunicator::run(const GradBucket& bucket) {
  std::string problem;
  at::Tensor result;
  try {
    result = registered_.run(bucket, group_);
    problem = problem_of(result, bucket.buffer);
  } catch (const CommError&) {
    throw;
  } catch (...) {
    problem = absl::StrCat("threw: ", present_error_text());
  }
  TORCH_CHECK(problem.empty(), "[comm hook] '", registered_.hook()->name(), "' for ",
              to_absl(bucket.name), ": ", problem);
  return result;
}

std::shared_ptr<Work> HookedCommunicator::advance(Level level, const PlannedUnit& unit,
                                                  const at::Tensor& part, const at::Tensor& whole,
                                                  std::shared_ptr<Work> after) {
  if (registered_.hook() != nullptr) return nullptr;
  return plain_->advance(level, unit, part, whole, std::move(after));
}

int64_t HookedCommunicator::sent_bytes(const at::Tensor& full) const {
  return registered_.hook() != nullptr ? sent_bytes_ : plain_->sent_bytes(full);
}

}  // namespace tessera::internal
