#include "tessera/optim/flat_adamw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/optim/adamw_kernels.h"
#include "tessera/optim/adamw_options.h"

namespace tessera {

namespace {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

class FlatAdamw final : public HostOptimizer {
 public:
  FlatAdamw(const ParameterTable& table, const OptimizerPlan& plan,
            const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards);

  void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
              std::span<const uint8_t> used, double gradient_scale) override;
  std::string problem() const override;
  int64_t state_bytes() const override;
  void append_hyper_parameters(std::vector<int64_t>& words) const override;
  std::vector<std::string> hyper_parameter_names() const override;

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  const at::Tensor& state(size_t shard, size_t name) const override;
  std::vector<int64_t> step_counts() const override { return steps_; }
  void set_step_counts(std::span<const int64_t> counts) override;
  std::vector<HyperParameter> hyper_parameters() const override;
  std::vector<std::string> problems_of(std::span<const double> values) const override;
  void set_hyper_parameters(std::span<const double> values) override;

 private:
  struct Moments {
    at::Tensor first;
    at::Tensor second;
  };

  /// The options of group `group` as they are now; null where the user put another type there.
  const AdamWOptions* options(size_t group) const;
  /// problem() without the values' ranges: groups that are not what parallelize made.
  std::string replaced_groups() const;
  void check_arguments(size_t shard, const at::Tensor& gradient,
                       std::span<const uint8_t> used) const;
  AdamwCoefficients coefficients(size_t parameter, double gradient_scale) const;

  std::vector<std::string> group_names_;                   // for messages
  std::vector<std::string> state_groups_;                  // HyperParameter::group
  std::vector<std::vector<at::Tensor>> group_parameters_;  // as given, to notice edits
  std::vector<size_t> group_of_;
  std::vector<OptimizerShard> shards_;
  std::vector<Moments> moments_;  // one per shard
  // Per entry of the table.
  std::vector<int64_t> steps_;
  std::vector<AdamwCoefficients> coefficients_;
};

using AdamwValues = std::array<double, kAdamwNames.size()>;

AdamwValues values_of_group(std::span<const double> values, size_t group) {
  AdamwValues own;
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(group * own.size()), own.size(),
              own.begin());
  return own;
}

/// Entries of a state are found by these names, so no two groups may share one.
std::vector<std::string> unique_group_names(const std::vector<OptimizerGroup>& groups) {
  std::vector<std::string> names = {"defaults"};
  for (const OptimizerGroup& group : groups) {
    const auto is_taken = [&names](const std::string& name) {
      return name.empty() || std::find(names.begin(), names.end(), name) != names.end();
    };
    std::string name = group.name;
    while (is_taken(name)) name += absl::StrCat(" #", names.size());
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::vector<at::Tensor>> parameters_by_group(const ParameterTable& table,
                                                         const std::vector<size_t>& group_of,
                                                         size_t groups) {
  TORCH_CHECK(group_of.size() == table.size(), "[optim] group_of: got ", group_of.size(),
              " entries, expected ", table.size(), "; pass what OptimizerPlan::assign returned");
  std::vector<std::vector<at::Tensor>> parameters(groups);
  for (size_t index = 0; index < table.size(); ++index) {
    TORCH_CHECK(group_of[index] < groups, "[optim] group_of: got group ", group_of[index],
                " for parameter '", table[index].name, "', expected less than ", groups,
                "; pass what OptimizerPlan::assign returned");
    if (table[index].is_trainable) parameters[group_of[index]].push_back(table[index].tensor);
  }
  return parameters;
}

FlatAdamw::FlatAdamw(const ParameterTable& table, const OptimizerPlan& plan,
                     const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards)
    : HostOptimizer(std::vector<OptimizerParamGroup>{},
                    std::make_unique<AdamWOptions>(plan.defaults)),
      state_groups_(unique_group_names(plan.groups)),
      group_parameters_(parameters_by_group(table, group_of, plan.groups.size() + 1)),
      group_of_(group_of),
      shards_(std::move(shards)),
      steps_(table.size(), 0),
      coefficients_(table.size()) {
  for (size_t group = 0; group < group_parameters_.size(); ++group) {
    group_names_.push_back(group == 0 ? "defaults" : "group '" + plan.groups[group - 1].name + "'");
    const AdamWOptions& options = group == 0 ? plan.defaults : plan.groups[group - 1].options;
    add_param_group({group_parameters_[group], std::make_unique<AdamWOptions>(options)});
  }
  const std::string unusable = problem();
  TORCH_CHECK(unusable.empty(), unusable);
  for (const OptimizerShard& shard : shards_) {
    const at::Tensor& values = shard.values;
    TORCH_CHECK(values.defined() && values.dim() == 1 && values.is_contiguous(),
                "[optim] shard: got ", values.defined() ? values.dim() : 0,
                " dimensions, expected a contiguous 1-d tensor");
    TORCH_CHECK(values.scalar_type() == c10::kFloat || values.scalar_type() == c10::kDouble,
                "[optim] parameter dtype: got ", values.scalar_type(),
                ", expected Float or Double; parameters of 16 bits train over masters");
    for (const Segment& segment : shard.segments) {
      TORCH_CHECK(segment.parameter < table.size() && table[segment.parameter].is_trainable &&
                      segment.buffer_offset >= 0 && segment.numel >= 0 &&
                      segment.buffer_offset + segment.numel <= values.numel(),
                  "[optim] segment: got parameter ", segment.parameter, " at elements ",
                  segment.buffer_offset, " to ", segment.buffer_offset + segment.numel,
                  ", expected a trainable parameter inside the shard's ", values.numel(),
                  " elements");
    }
    const auto zeros = [&values] {
      return allocate_private(values.numel(), values.scalar_type()).zero_();
    };
    moments_.push_back({zeros(), zeros()});
  }
}

const AdamWOptions* FlatAdamw::options(size_t group) const {
  if (group >= param_groups_.size() || !param_groups_[group].has_options()) return nullptr;
  return dynamic_cast<const AdamWOptions*>(&param_groups_[group].options());
}

std::string FlatAdamw::replaced_groups() const {
  if (param_groups_.size() != group_parameters_.size()) {
    return absl::StrCat("[optim] parameter groups: got ", param_groups_.size(), ", expected ",
                        group_parameters_.size(),
                        "; groups are fixed by the OptimizerPlan given to parallelize");
  }
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const std::vector<at::Tensor>& present = param_groups_[group].params();
    const std::vector<at::Tensor>& given = group_parameters_[group];
    if (!std::equal(present.begin(), present.end(), given.begin(), given.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); })) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got a foreign list of parameters, expected the one given to "
                          "parallelize; choose parameters by an OptimizerPlan");
    }
    if (options(group) == nullptr) {
      return absl::StrCat("[optim] ", group_names_[group],
                          ": got options of another type, expected AdamWOptions; change the values "
                          "of the options that are there");
    }
  }
  return "";
}

std::string FlatAdamw::problem() const {
  std::string replaced = replaced_groups();
  if (!replaced.empty()) return replaced;
  for (size_t group = 0; group < group_names_.size(); ++group) {
    const auto problems = adamw_problems(group_names_[group], *options(group));
    if (!problems.empty()) return problems.front();
  }
  return "";
}

void FlatAdamw::check_arguments(size_t shard, const at::Tensor& gradient,
                                std::span<const uint8_t> used) const {
  TORCH_CHECK(used.size() == steps_.size(), "[optim] used: got ", used.size(),
              " entries, expected ", steps_.size());
  TORCH_CHECK(shard < shards_.size(), "[optim] shard: got number ", shard, ", expected less than ",
              shards_.size());
  const at::Tensor& values = shards_[shard].values;
  TORCH_CHECK(
      gradient.defined() && gradient.dim() == 1 && gradient.is_contiguous() &&
          gradient.numel() == values.numel() && gradient.scalar_type() == values.scalar_type(),
      "[optim] gradient ", shard, ": got ", gradient.defined() ? gradient.numel() : 0,
      " elements of ", gradient.defined() ? c10::toString(gradient.scalar_type()) : "nothing",
      ", expected a contiguous 1-d tensor of ", values.numel(), " of ", values.scalar_type());
}

AdamwCoefficients FlatAdamw::coefficients(size_t parameter, double gradient_scale) const {
  const AdamWOptions& now = *options(group_of_[parameter]);
  const auto [beta1, beta2] = now.betas();
  const auto step = static_cast<double>(steps_[parameter]);
  return adamw_coefficients({.lr = now.lr(),
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .eps = now.eps(),
                             .weight_decay = now.weight_decay()},
                            std::pow(beta1, step), std::pow(beta2, step), gradient_scale);
}

void FlatAdamw::update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
                       std::span<const uint8_t> used, double gradient_scale) {
  const std::string unusable = problem();
  TORCH_CHECK(unusable.empty(), unusable);
  check_arguments(shard, gradient, used);
  for (const size_t parameter : parameters) {
    if (used[parameter] == 0) continue;
    ++steps_[parameter];
    coefficients_[parameter] = coefficients(parameter, gradient_scale);
  }
  const auto update_segments = [&]<typename T>(T* values) {
    const T* gradients = gradient.const_data_ptr<T>();
    T* first = moments_[shard].first.mutable_data_ptr<T>();
    T* second = moments_[shard].second.mutable_data_ptr<T>();
    for (const Segment& segment : shards_[shard].segments) {
      if (used[segment.parameter] == 0) continue;
      const int64_t at = segment.buffer_offset;
      adamw_update(values + at, gradients + at, first + at, second + at, segment.numel,
                   coefficients_[segment.parameter]);
    }
  };
  const at::Tensor& values = shards_[shard].values;
  if (values.scalar_type() == c10::kFloat) {
    update_segments(values.mutable_data_ptr<float>());
  } else {
    update_segments(values.mutable_data_ptr<double>());
  }
}

int64_t FlatAdamw::state_bytes() const {
  int64_t bytes = 0;
  for (const Moments& moments : moments_) {
    bytes += static_cast<int64_t>(moments.first.nbytes() + moments.second.nbytes());
  }
  return bytes;
}

// Never throws and always appends the same number of words: a rank whose groups are broken must
// reach the vote, which refuses what problem() says.
void FlatAdamw::append_hyper_parameters(std::vector<int64_t>& words) const {
  words.push_back(static_cast<int64_t>(param_groups_.size()));
  for (size_t group = 0; group < group_names_.size(); ++group) {
    const AdamWOptions* now = options(group);
    for (double value : now != nullptr ? adamw_values(*now) : AdamwValues{}) {
      words.push_back(std::bit_cast<int64_t>(value));
    }
    words.push_back(now != nullptr && now->amsgrad() ? 1 : 0);
  }
}

std::vector<std::string> FlatAdamw::hyper_parameter_names() const {
  std::vector<std::string> names = {"number of parameter groups"};
  for (const std::string& group : group_names_) {
    for (const char* name : kAdamwNames) names.push_back(group + ": " + name);
    names.push_back(group + ": amsgrad");
  }
  return names;
}

const at::Tensor& FlatAdamw::state(size_t shard, size_t name) const {
  TORCH_INTERNAL_ASSERT(name < 2);
  const Moments& moments = moments_.at(shard);
  return name == 0 ? moments.first : moments.second;
}

void FlatAdamw::set_step_counts(std::span<const int64_t> counts) {
  TORCH_INTERNAL_ASSERT(counts.size() == steps_.size());
  steps_.assign(counts.begin(), counts.end());
}

std::vector<HyperParameter> FlatAdamw::hyper_parameters() const {
  std::vector<HyperParameter> all;
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    const AdamWOptions* now = options(group);
    const AdamwValues values = now != nullptr ? adamw_values(*now) : AdamwValues{};
    for (size_t i = 0; i < values.size(); ++i) {
      all.push_back({state_groups_[group], kAdamwNames[i], values[i]});
    }
  }
  return all;
}

std::vector<std::string> FlatAdamw::problems_of(std::span<const double> values) const {
  TORCH_INTERNAL_ASSERT(values.size() == state_groups_.size() * kAdamwNames.size());
  std::vector<std::string> problems;
  if (std::string replaced = replaced_groups(); !replaced.empty()) {
    problems.push_back(std::move(replaced));
  }
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    AdamWOptions loaded;
    set_adamw_values(loaded, values_of_group(values, group));
    for (std::string& problem : adamw_problems(group_names_[group], loaded)) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

void FlatAdamw::set_hyper_parameters(std::span<const double> values) {
  const std::vector<std::string> problems = problems_of(values);
  TORCH_CHECK(problems.empty(), problems.front());
  for (size_t group = 0; group < state_groups_.size(); ++group) {
    set_adamw_values(static_cast<AdamWOptions&>(param_groups_[group].options()),
                     values_of_group(values, group));
  }
}

}  // namespace

std::unique_ptr<HostOptimizer> make_flat_adamw(const ParameterTable& table,
                                               const OptimizerPlan& plan,
                                               const std::vector<size_t>& group_of,
                                               std::vector<OptimizerShard> shards) {
  return std::make_unique<FlatAdamw>(table, plan, group_of, std::move(shards));
}

}  // namespace tessera
