#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/device_lists.h"
#include "tessera/optim/cuda/dtype.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/optim/cuda/queue.h"
#include "tessera/optim/cuda/uploads.h"
#include "tessera/optim/slices/elementwise_optimizer.h"

namespace tessera::internal {

namespace {

using cuda::Api;
using cuda::GroupNumbers;
using cuda::ParameterUpdate;
using cuda::Piece;
using cuda::StatePlaces;

constexpr int64_t kGroupWords = sizeof(GroupNumbers) / sizeof(int64_t);
static_assert(sizeof(GroupNumbers) == kGroupWords * sizeof(int64_t));
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

/// Returns `shards`. Throws c10::Error unless their values are Float on `device`. The constructor
/// calls it in the initialiser of the base class, so that it throws before any work is queued on
/// the device.
std::vector<OptimizerShard> checked(std::vector<OptimizerShard> shards, at::Device device) {
  for (const OptimizerShard& shard : shards) {
    if (!shard.values.defined()) continue;  // require_shard() reports it
    TORCH_CHECK(shard.values.scalar_type() == at::kFloat && shard.values.device() == device,
                "[optim] shard: got ", shard.values.scalar_type(), " on ", shard.values.device(),
                ", expected Float on ", device, "; train other dtypes on the CPU");
  }
  return shards;
}

void wait_for(Device& device) {
  const std::shared_ptr<Event> is_done = device.make_event();
  device.current_stream()->record(*is_done);
  is_done->synchronize();
}

/// The pieces of one shard that one rule updates.
struct Launch {
  cuda::Rule rule;
  size_t list;                                       // index in LaunchLists::pieces and ::places
  std::array<size_t, cuda::kMaxStates> kept_states;  // per state of the rule: index in states()
};

/// The launches for each shard, and the pieces that each launch updates.
struct LaunchLists {
  std::vector<std::vector<Launch>> launches;     // per shard
  std::vector<std::vector<Piece>> pieces;        // per launch
  std::vector<std::vector<StatePlaces>> places;  // per launch, one for each of its pieces

  /// Returns the shard's launch of `rule`; adds a launch if there is none.
  Launch& launch_of(size_t shard, cuda::Rule rule) {
    for (Launch& launch : launches[shard]) {
      if (launch.rule == rule) return launch;
    }
    Launch& launch = launches[shard].emplace_back(Launch{rule, pieces.size(), {}});
    launch.kept_states.fill(ParameterGroups::kNoState);
    pieces.emplace_back();
    places.emplace_back();
    return launch;
  }
};

/// LaunchLists whose lists lie on a device.
struct DeviceLaunches {
  DeviceLaunches(Device& device, const LaunchLists& lists)
      : of_shard(lists.launches), pieces(device, lists.pieces), places(device, lists.places) {}

  std::vector<std::vector<Launch>> of_shard;
  cuda::DeviceLists<Piece> pieces;
  cuda::DeviceLists<StatePlaces> places;
};

class GpuElementwise final : public ElementwiseOptimizer<GpuOptimizer> {
 public:
  GpuElementwise(const ParameterTable& table, const OptimizerPlan& plan,
                 const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                 std::shared_ptr<const Api> api, std::shared_ptr<Device> device);

  void advance(const cuda::StepOutcome* outcome, const int64_t* used) override;
  void update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) override;

  std::vector<int64_t> step_counts() const override;
  void set_step_counts(std::span<const int64_t> counts) override;

 private:
  LaunchLists launch_lists() const;
  void begin_states();
  /// Calls write(memory) on host memory with as many elements as `to`, and queues a copy of it to
  /// `to`.
  template <typename Write>
  void upload(const at::Tensor& to, const Write& write);

  const std::shared_ptr<const Api> api_;
  const std::shared_ptr<Device> device_;
  const int64_t parameters_;
  const DeviceLaunches launches_;
  cuda::Uploads uploads_;
  // These lie on the device. All but groups_ have an entry per parameter of the table.
  at::Tensor steps_;
  at::Tensor group_of_;
  at::Tensor updates_;
  at::Tensor groups_;  // GroupNumbers, per group
};

GpuElementwise::GpuElementwise(const ParameterTable& table, const OptimizerPlan& plan,
                               const std::vector<size_t>& group_of,
                               std::vector<OptimizerShard> shards, std::shared_ptr<const Api> api,
                               std::shared_ptr<Device> device)
    : ElementwiseOptimizer(table, plan, group_of,
                           checked(std::move(shards), device->torch_device()),
                           DeviceZeros{*api, *device}),
      api_(std::move(api)),
      device_(std::move(device)),
      parameters_(static_cast<int64_t>(table.size())),
      launches_(*device_, launch_lists()),
      uploads_(device_,
               std::max(parameters_, static_cast<int64_t>(groups().size()) * kGroupWords)) {
  const DeviceZeros zeros = {*api_, *device_};
  steps_ = zeros(parameters_, at::kLong);
  updates_ = zeros(parameters_ * kUpdateWords, at::kInt);
  groups_ = zeros(static_cast<int64_t>(groups().size()) * kGroupWords, at::kLong);
  group_of_ = device_->allocate(parameters_, at::kInt);
  upload(group_of_, [&](void* to) {
    std::transform(group_of.begin(), group_of.end(), static_cast<int32_t*>(to),
                   [](size_t group) { return static_cast<int32_t>(group); });
  });
  begin_states();
}

/// Lists the launches. Each shard has one launch for each rule; groups with the same algorithm
/// share that launch.
LaunchLists GpuElementwise::launch_lists() const {
  LaunchLists lists;
  lists.launches.resize(shards_.size());
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const Segment& segment : shards_[shard].segments) {
      const size_t group = groups().group_of(segment.parameter);
      const Algorithm& algorithm = groups().algorithm(group);
      TORCH_INTERNAL_ASSERT(algorithm.states.size() <= cuda::kMaxStates);
      Launch& launch = lists.launch_of(shard, algorithm.on_device->rule);
      StatePlaces of_segment = {};
      std::fill(std::begin(of_segment.begin), std::end(of_segment.begin), -1);
      for (size_t state = 0; state < algorithm.states.size(); ++state) {
        const size_t kept = groups().kept_state(group, state);
        if (kept == ParameterGroups::kNoState) continue;
        launch.kept_states[state] = kept;
        of_segment.begin[state] = layouts_[shard][kept].find(segment.buffer_offset);
      }
      for (const Piece& piece : cuda::cut_into_pieces({segment})) {
        StatePlaces places = of_segment;
        for (int64_t& begin : places.begin) {
          if (begin >= 0) begin += piece.begin - segment.buffer_offset;
        }
        lists.pieces[launch.list].push_back(piece);
        lists.places[launch.list].push_back(places);
      }
    }
  }
  return lists;
}

/// Fills the states whose initial values are not zero, and waits until the copies have run.
void GpuElementwise::begin_states() {
  std::vector<at::Tensor> on_host;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const Segment& segment : shards_[shard].segments) {
      const size_t group = groups().group_of(segment.parameter);
      const std::vector<StateField>& states = groups().algorithm(group).states;
      for (size_t state = 0; state < states.size(); ++state) {
        const size_t kept = groups().kept_state(group, state);
        if (kept == ParameterGroups::kNoState) continue;
        const double value = states[state].initial_value(groups().options(group));
        if (value == 0.0) continue;
        on_host.push_back(device_->allocate_on_host(segment.numel, at::kFloat).fill_(value));
        device_->current_stream()->copy(state_of(shard, segment, kept), on_host.back());
      }
    }
  }
  if (!on_host.empty()) wait_for(*device_);
}

template <typename Write>
void GpuElementwise::upload(const at::Tensor& to, const Write& write) {
  const at::Tensor memory = uploads_.take().view(to.scalar_type()).narrow(0, 0, to.numel());
  write(memory.mutable_data_ptr());
  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(to, memory);
  uploads_.queued(*stream);
}

void GpuElementwise::advance(const cuda::StepOutcome* outcome, const int64_t* used) {
  groups().require_usable();
  upload(groups_, [&](void* to) {
    auto* numbers = static_cast<GroupNumbers*>(to);
    for (size_t i = 0; i < groups().size(); ++i) {
      const DeviceRule& rule = *groups().algorithm(i).on_device;
      numbers[i] = {.numbers = {}, .rule = rule.rule, .padding = 0};
      rule.write(groups().options(i), numbers[i]);
    }
  });
  const cuda::AdvanceArguments arguments = {
      .count = parameters_,
      .used = used,
      .group_of = group_of_.const_data_ptr<int32_t>(),
      .groups = static_cast<const GroupNumbers*>(groups_.const_data_ptr()),
      .outcome = outcome,
      .steps = steps_.mutable_data_ptr<int64_t>(),
      .updates = static_cast<ParameterUpdate*>(updates_.mutable_data_ptr())};
  cuda::queue(*api_, *device_, "advance",
              [&](void* stream) { return api_->advance(&arguments, stream); });
}

void GpuElementwise::update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) {
  TORCH_CHECK(shard < shards_.size(), "[optim] shard: got number ", shard, ", expected less than ",
              shards_.size());
  const at::Tensor& values = shards_[shard].values;
  cuda::require_elements("gradient", gradient, values.numel(), device_->torch_device());
  if (target.defined()) {
    cuda::require_elements("target", target, values.numel(), device_->torch_device());
  }
  for (const Launch& launch : launches_.of_shard[shard]) {
    cuda::UpdateArguments arguments = {
        .rule = launch.rule,
        .pieces = launches_.pieces.items(launch.list),
        .piece_count = launches_.pieces.count(launch.list),
        .places = launches_.places.items(launch.list),
        .updates = static_cast<const ParameterUpdate*>(updates_.const_data_ptr()),
        .values = values.mutable_data_ptr<float>(),
        .gradient = gradient.const_data_ptr(),
        .states = {},
        .target = target.defined() ? target.mutable_data_ptr() : nullptr,
        .gradient_dtype = cuda::dtype_of(gradient.scalar_type()),
        .target_dtype =
            target.defined() ? cuda::dtype_of(target.scalar_type()) : cuda::Dtype::kFloat};
    for (size_t state = 0; state < launch.kept_states.size(); ++state) {
      const size_t kept = launch.kept_states[state];
      if (kept == ParameterGroups::kNoState) continue;
      arguments.states[state] = states_[shard][kept].mutable_data_ptr<float>();
    }
    cuda::queue(*api_, *device_, "update",
                [&](void* stream) { return api_->update(&arguments, stream); });
  }
}

std::vector<int64_t> GpuElementwise::step_counts() const {
  const at::Tensor counts = device_->allocate_on_host(parameters_, at::kLong);
  device_->current_stream()->copy(counts, steps_);
  wait_for(*device_);
  const auto* data = counts.const_data_ptr<int64_t>();
  return {data, data + parameters_};
}

void GpuElementwise::set_step_counts(std::span<const int64_t> counts) {
  TORCH_INTERNAL_ASSERT(counts.size() == static_cast<size_t>(parameters_));
  upload(steps_,
         [&](void* to) { std::copy(counts.begin(), counts.end(), static_cast<int64_t*>(to)); });
}

}  // namespace

std::unique_ptr<GpuOptimizer> make_gpu_optimizer(const ParameterTable& table,
                                                 const OptimizerPlan& plan,
                                                 const std::vector<size_t>& group_of,
                                                 std::vector<OptimizerShard> shards,
                                                 std::shared_ptr<const cuda::Api> api,
                                                 std::shared_ptr<Device> device) {
  TORCH_INTERNAL_ASSERT(without_kernels(plan).empty());
  return std::make_unique<GpuElementwise>(table, plan, group_of, std::move(shards), std::move(api),
                                          std::move(device));
}

}  // namespace tessera::internal
