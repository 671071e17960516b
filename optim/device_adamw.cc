#include "tessera/optim/device_adamw.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/optim/adamw.h"
#include "tessera/optim/cuda/dtype.h"
#include "tessera/optim/cuda/piece_tables.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/optim/cuda/queue.h"
#include "tessera/optim/cuda/uploads.h"
#include "tessera/optim/elementwise_optimizer.h"

namespace tessera::internal {

namespace {

using cuda::Api;
using cuda::ParameterUpdate;

constexpr int64_t kGroupNumbers = sizeof(AdamwHyperParameters) / sizeof(double);
static_assert(sizeof(AdamwHyperParameters) == kGroupNumbers * sizeof(double));
constexpr int64_t kUpdateWords = sizeof(ParameterUpdate) / sizeof(int32_t);
static_assert(sizeof(ParameterUpdate) == kUpdateWords * sizeof(int32_t));

/// Makes tensors of zeros on a device.
struct DeviceZeros {
  const Api& api;
  Device& device;

  at::Tensor operator()(int64_t numel, at::ScalarType dtype) const {
    at::Tensor tensor = device.allocate(numel, dtype);
    cuda::queue(api, device, "zero", [&](void* stream) {
      return api.zero(tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()), stream);
    });
    return tensor;
  }
};

/// Before anything is queued.
std::vector<OptimizerShard> checked(std::vector<OptimizerShard> shards, at::Device device) {
  for (const OptimizerShard& shard : shards) {
    if (!shard.values.defined()) continue;  // require_shard() says so
    TORCH_CHECK(shard.values.scalar_type() == at::kFloat && shard.values.device() == device,
                "[optim] shard: got ", shard.values.scalar_type(), " on ", shard.values.device(),
                ", expected Float on ", device, "; train other dtypes on the CPU");
  }
  return shards;
}

std::vector<std::vector<cuda::Piece>> piece_lists(const std::vector<OptimizerShard>& shards) {
  std::vector<std::vector<cuda::Piece>> lists;
  for (const OptimizerShard& shard : shards) lists.push_back(cuda::cut_into_pieces(shard.segments));
  return lists;
}

class DeviceAdamw final : public ElementwiseOptimizer<DeviceOptimizer> {
 public:
  DeviceAdamw(const ParameterTable& table, const OptimizerPlan& plan,
              const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
              std::shared_ptr<const Api> api, std::shared_ptr<Device> device);

  void advance(const cuda::StepOutcome* outcome, const int64_t* used) override;
  void update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) override;

  std::vector<int64_t> step_counts() const override;
  void set_step_counts(std::span<const int64_t> counts) override;

 private:
  /// Queues a copy to `to` of what write(memory) puts into memory of as many elements.
  template <typename Write>
  void upload(const at::Tensor& to, const Write& write);

  const std::shared_ptr<const Api> api_;
  const std::shared_ptr<Device> device_;
  const int64_t parameters_;
  cuda::PieceTables pieces_;  // per shard
  cuda::Uploads uploads_;
  // On the device. Per parameter of the table:
  at::Tensor steps_;
  at::Tensor group_of_;
  at::Tensor updates_;
  at::Tensor hyper_parameters_;  // per group
};

DeviceAdamw::DeviceAdamw(const ParameterTable& table, const OptimizerPlan& plan,
                         const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                         std::shared_ptr<const Api> api, std::shared_ptr<Device> device)
    : ElementwiseOptimizer(table, plan, group_of,
                           checked(std::move(shards), device->torch_device()),
                           DeviceZeros{*api, *device}),
      api_(std::move(api)),
      device_(std::move(device)),
      parameters_(static_cast<int64_t>(table.size())),
      pieces_(*device_, piece_lists(shards_)),
      uploads_(device_,
               std::max(parameters_, static_cast<int64_t>(groups().size()) * kGroupNumbers)) {
  const DeviceZeros zeros = {*api_, *device_};
  steps_ = zeros(parameters_, at::kLong);
  updates_ = zeros(parameters_ * kUpdateWords, at::kInt);
  hyper_parameters_ = zeros(static_cast<int64_t>(groups().size()) * kGroupNumbers, at::kDouble);
  group_of_ = device_->allocate(parameters_, at::kInt);
  upload(group_of_, [&](void* to) {
    std::transform(group_of.begin(), group_of.end(), static_cast<int32_t*>(to),
                   [](size_t group) { return static_cast<int32_t>(group); });
  });
}

template <typename Write>
void DeviceAdamw::upload(const at::Tensor& to, const Write& write) {
  const at::Tensor memory = uploads_.take().view(to.scalar_type()).narrow(0, 0, to.numel());
  write(memory.mutable_data_ptr());
  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(to, memory);
  uploads_.queued(*stream);
}

void DeviceAdamw::advance(const cuda::StepOutcome* outcome, const int64_t* used) {
  groups().require_usable();
  upload(hyper_parameters_, [&](void* to) {
    auto* numbers = static_cast<AdamwHyperParameters*>(to);
    for (size_t i = 0; i < groups().size(); ++i) {
      numbers[i] = adamw_hyper_parameters(
          static_cast<const torch::optim::AdamWOptions&>(groups().options(i)));
    }
  });
  const cuda::AdvanceArguments arguments = {
      .count = parameters_,
      .used = used,
      .group_of = group_of_.const_data_ptr<int32_t>(),
      .groups = static_cast<const AdamwHyperParameters*>(hyper_parameters_.const_data_ptr()),
      .outcome = outcome,
      .steps = steps_.mutable_data_ptr<int64_t>(),
      .updates = static_cast<ParameterUpdate*>(updates_.mutable_data_ptr())};
  cuda::queue(*api_, *device_, "advance",
              [&](void* stream) { return api_->advance(&arguments, stream); });
}

void DeviceAdamw::update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) {
  TORCH_CHECK(shard < shards_.size(), "[optim] shard: got number ", shard, ", expected less than ",
              shards_.size());
  const at::Tensor& values = shards_[shard].values;
  cuda::require_elements("gradient", gradient, values.numel(), device_->torch_device());
  if (target.defined()) {
    cuda::require_elements("target", target, values.numel(), device_->torch_device());
  }
  const cuda::AdamwArguments arguments = {
      .pieces = pieces_.pieces(shard),
      .piece_count = pieces_.count(shard),
      .updates = static_cast<const ParameterUpdate*>(updates_.const_data_ptr()),
      .values = values.mutable_data_ptr<float>(),
      .gradient = gradient.const_data_ptr(),
      .moment1 = states_[shard][0].mutable_data_ptr<float>(),
      .moment2 = states_[shard][1].mutable_data_ptr<float>(),
      .target = target.defined() ? target.mutable_data_ptr() : nullptr,
      .gradient_dtype = cuda::dtype_of(gradient.scalar_type()),
      .target_dtype =
          target.defined() ? cuda::dtype_of(target.scalar_type()) : cuda::Dtype::kFloat};
  cuda::queue(*api_, *device_, "adamw",
              [&](void* stream) { return api_->adamw(&arguments, stream); });
}

std::vector<int64_t> DeviceAdamw::step_counts() const {
  const at::Tensor counts = device_->allocate_on_host(parameters_, at::kLong);
  const std::shared_ptr<Event> is_there = device_->make_event();
  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(counts, steps_);
  stream->record(*is_there);
  is_there->synchronize();
  const auto* data = counts.const_data_ptr<int64_t>();
  return {data, data + parameters_};
}

void DeviceAdamw::set_step_counts(std::span<const int64_t> counts) {
  TORCH_INTERNAL_ASSERT(counts.size() == static_cast<size_t>(parameters_));
  upload(steps_,
         [&](void* to) { std::copy(counts.begin(), counts.end(), static_cast<int64_t*>(to)); });
}

}  // namespace

std::unique_ptr<DeviceOptimizer> make_device_adamw(const ParameterTable& table,
                                                   const OptimizerPlan& plan,
                                                   const std::vector<size_t>& group_of,
                                                   std::vector<OptimizerShard> shards,
                                                   std::shared_ptr<const cuda::Api> api,
                                                   std::shared_ptr<Device> device) {
  return std::make_unique<DeviceAdamw>(table, plan, group_of, std::move(shards), std::move(api),
                                       std::move(device));
}

}  // namespace tessera::internal
