#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/optim/adamw_groups.h"
#include "tessera/optim/flat_optimizer.h"

namespace tessera {

/// Throws c10::Error unless the shard's values are a contiguous 1-d tensor of Float or Double and
/// its segments parts of trainable parameters inside it.
void require_adamw_shard(const OptimizerShard& shard, const ParameterTable& table);

/// What both AdamWs are, Base being HostOptimizer or DeviceOptimizer: groups, shards and moments.
template <typename Base>
class AdamwOptimizer : public Base {
 public:
  /// `zeros` makes a shard's moment like its values.
  template <typename Zeros>
  AdamwOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                 const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                 const Zeros& zeros)
      : Base(std::vector<torch::optim::OptimizerParamGroup>{},
             std::make_unique<torch::optim::AdamWOptions>(plan.defaults)),
        groups_(*this, table, plan, group_of),
        shards_(std::move(shards)) {
    for (const OptimizerShard& shard : shards_) {
      require_adamw_shard(shard, table);
      moments_.push_back({zeros(shard.values), zeros(shard.values)});
    }
  }

  std::string problem() const override { return groups_.problem(); }
  void append_hyper_parameters(std::vector<int64_t>& words) const override {
    groups_.append_hyper_parameters(words);
  }
  std::vector<std::string> hyper_parameter_names() const override {
    return groups_.hyper_parameter_names();
  }
  std::vector<HyperParameter> hyper_parameters() const override {
    return groups_.hyper_parameters();
  }
  std::vector<std::string> problems_of(std::span<const double> values) const override {
    return groups_.problems_of(values);
  }
  void set_hyper_parameters(std::span<const double> values) override {
    groups_.set_hyper_parameters(values);
  }

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  const at::Tensor& state(size_t shard, size_t name) const override {
    TORCH_INTERNAL_ASSERT(name < 2);
    const Moments& moments = moments_.at(shard);
    return name == 0 ? moments.first : moments.second;
  }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const Moments& moments : moments_) {
      bytes += static_cast<int64_t>(moments.first.nbytes() + moments.second.nbytes());
    }
    return bytes;
  }

 protected:
  struct Moments {
    at::Tensor first;
    at::Tensor second;
  };

  AdamwGroups groups_;
  std::vector<OptimizerShard> shards_;
  std::vector<Moments> moments_;  // one per shard
};

}  // namespace tessera
