#include "tessera/tests/support/state_run.h"

#include <cstring>
#include <functional>
#include <random>
#include <utility>

#include <absl/strings/str_cat.h>
#include <torch/optim/adamw.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera::internal::testing {
namespace {

at::Tensor random_bits(const std::string& name, uint64_t seed, int64_t numel,
                       at::ScalarType dtype) {
  std::mt19937_64 random(std::hash<std::string>()(name) ^ (seed * 0x9e3779b97f4a7c15));
  at::Tensor tensor = at::empty({numel}, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<unsigned char>(random());
  return tensor;
}

bool has_equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() && a.is_contiguous() &&
         b.is_contiguous() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

int64_t count_of(const std::string& name, uint64_t seed) {
  return static_cast<int64_t>((std::hash<std::string>()(name) ^ seed) % 1000);
}

std::vector<NamedTensor> parameters_of(const StateModel& model) {
  const auto zeros = [&](const std::vector<int64_t>& sizes) {
    return torch::zeros(sizes, model.dtype);
  };
  at::Tensor conv = zeros({5, 3, 2, 2});
  at::Tensor wide = zeros({37, 29});
  if (!model.is_contiguous) {
    conv = conv.contiguous(at::MemoryFormat::ChannelsLast);
    wide = zeros({29, 37}).t();
  }
  return {{"conv.weight", conv.requires_grad_()},
          {"fc.weight", zeros({13, 7}).requires_grad_()},
          {"fc.bias", zeros({13}).requires_grad_()},
          {"scale", zeros({}).requires_grad_()},
          {"frozen", zeros({9, 5})},
          {"empty", zeros({0, 3}).requires_grad_()},
          {"wide.weight", wide.requires_grad_()}};
}

std::vector<NamedTensor> make_buffers() {
  const at::Tensor shared = torch::zeros({11}, torch::kBool);
  return {{"norm.mean", torch::zeros({13})},
          {"norm.count", torch::zeros({}, torch::kLong)},
          {"mask", shared},
          {"mask_again", shared},
          {"table", torch::zeros({6, 4}, torch::kDouble).t()},
          {"nothing", torch::zeros({0})}};
}

std::vector<UnitPlan::Membership> membership(bool splits) {
  if (!splits) return {{"bucket 0", {5, 6, 3}}, {"bucket 1", {2, 1, 0}}};
  return {{"root", {3, 5}, UnitKind::kRoot},
          {"conv", {0}},
          {"wide", {6}},
          {"fc", {1, 2}},
          {"frozen", {4}, UnitKind::kFrozen}};
}

OptimizerPlan optimizer_plan() {
  return OptimizerPlan(torch::optim::AdamWOptions(1e-2),
                       {{"bias", [](std::string_view name) { return name.ends_with("bias"); },
                         torch::optim::AdamWOptions(3e-3)},
                        {"bias", [](std::string_view name) { return name == "scale"; },
                         torch::optim::AdamWOptions(2e-3)}});
}

const char* const kGroups[] = {"defaults", "bias", "bias #2"};

/// A value for group `group`, in the order of kAdamwNames.
double hyper_parameter(size_t group, size_t number, uint64_t seed) {
  return 1.0 / static_cast<double>(3 + group + 5 * number + seed % 100);
}

StateEntry whole(const at::Tensor& like, at::ScalarType dtype, const std::string& name,
                 uint64_t seed) {
  at::Tensor bits = random_bits(name, seed, like.numel(), dtype);
  // Random bytes are not valid bools.
  if (dtype == at::kBool) bits = bits.view(at::kByte).bitwise_and(1).view(at::kBool);
  return {.sizes = like.sizes().vec(),
          .strides = flat_strides(like),
          .dtype = dtype,
          .pieces = {{0, bits}}};
}

template <typename T>
StateEntry number(T value) {
  return {.sizes = {},
          .strides = {},
          .dtype = c10::CppTypeToScalarType<T>::value,
          .pieces = {{0, torch::tensor({value}, c10::CppTypeToScalarType<T>::value)}}};
}

}  // namespace

StateRun::StateRun(std::shared_ptr<ProcessGroup> world, const StateConfiguration& configuration,
                   StateModel model)
    : world_(std::move(world)),
      model_(model),
      table_(parameters_of(model)),
      slices_(configuration.degrees(world_->size()), world_->size(), world_->rank()),
      plan_(table_, membership(configuration.splits), world_->size()),
      buffers_(make_buffers()) {
  masters_ = std::make_unique<MasterValues>(table_, plan_, slices_, world_->device(), meter_);
  const Residence residence = configuration.splits ? Residence::kSplit : Residence::kResident;
  flat_ = std::make_unique<FlatParameters>(table_, plan_, residence,
                                           own_memory(plan_, slices_, residence,
                                                      [this](int64_t numel, at::ScalarType dtype) {
                                                        return world_->allocate(numel, dtype);
                                                      }),
                                           world_->device(), meter_);
  masters_->adopt(*flat_);
  std::vector<OptimizerShard> shards;
  for (size_t unit = 0; unit < plan_.trainable_size(); ++unit) {
    shards.push_back({masters_->values()[unit], {}});
  }
  const OptimizerPlan plan = optimizer_plan();
  optimizer_ = make_cpu_optimizer(table_, plan, plan.assign(table_).value(), std::move(shards));
  state_ = std::make_unique<StateSlices>(table_, plan_, slices_, buffers_, *optimizer_, *masters_,
                                         *flat_);
  stream_ = std::make_unique<StreamedState>(*world_, *state_);
  transfer_ = std::make_unique<StateTransfer>(*world_, *stream_);
  counters_.has_scaler = model.has_scaler;
}

std::vector<StateRun::Slice> StateRun::slices_of_rank() const {
  std::vector<Slice> all;
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    all.push_back({flat_->shard(unit), flat_->shard_range(unit), unit, "model.", ""});
    if (unit >= plan_.trainable_size()) continue;
    const Range range = slices_.optimizer(plan_[unit].layout);
    if (plan_[unit].precision.has_masters()) {
      all.push_back({masters_->values()[unit], range, unit, "optimizer.", ".master"});
    }
    all.push_back({optimizer_->state(unit, 0), range, unit, "optimizer.", ".exp_avg"});
    all.push_back({optimizer_->state(unit, 1), range, unit, "optimizer.", ".exp_avg_sq"});
  }
  return all;
}

void StateRun::fill(uint64_t seed) {
  const at::NoGradGuard no_grad;
  const StateDict state = expected(seed, model_);
  for (const Slice& slice : slices_of_rank()) {
    slice.values.zero_();
    for (const Segment& segment : plan_[slice.unit].layout.segments(slice.range)) {
      const std::string& name = table_[plan_[slice.unit].parameters[segment.parameter]].name;
      const StateEntry& entry = state.entries.at(absl::StrCat(slice.prefix, name, slice.suffix));
      slice.values.narrow(0, segment.buffer_offset - slice.range.begin, segment.numel)
          .copy_(entry.pieces[0].values.narrow(0, segment.parameter_offset, segment.numel));
    }
  }
  std::vector<int64_t> step_counts = optimizer_->step_counts();
  for (size_t i = 0; i < table_.size(); ++i) {
    const std::string& name = table_[i].name;
    if (!plan_.has_place(i)) {
      at::Tensor tensor = table_[i].tensor;
      tensor.copy_(state.entries.at("model." + name).tensor());
    }
    if (table_[i].is_trainable) step_counts[i] = count_of(name, seed);
  }
  optimizer_->set_step_counts(step_counts);
  const uint64_t own_seed = seed + (world_->rank() == 0 ? 0 : 1000);
  const StateDict own = expected(own_seed, model_);
  for (NamedTensor& buffer : buffers_) {
    if (buffer.name == "mask_again") continue;
    buffer.tensor.copy_(own.entries.at("model." + buffer.name).tensor());
  }
  std::vector<double> values;
  for (size_t group = 0; group < 3; ++group) {
    for (size_t i = 0; i < 5; ++i) values.push_back(hyper_parameter(group, i, seed));
  }
  optimizer_->groups().set_hyper_parameters(values);
  counters_.steps = static_cast<int64_t>(seed) * 10;
  counters_.loss_scale = static_cast<double>(seed) * 0.5;
  counters_.good_steps = static_cast<int64_t>(seed) + 1;
}

StateDict StateRun::expected(uint64_t seed, const StateModel& model) {
  StateDict state;
  const auto add = [&](const std::string& name, const at::Tensor& like, at::ScalarType dtype) {
    state.entries[name] = whole(like, dtype, name, seed);
  };
  const bool has_masters = model.dtype == at::kBFloat16;
  const at::ScalarType master = has_masters ? at::kFloat : model.dtype;
  for (const NamedTensor& parameter : parameters_of(model)) {
    add("model." + parameter.name, parameter.tensor, model.dtype);
    if (!parameter.tensor.requires_grad()) continue;
    const std::string name = "optimizer." + parameter.name;
    add(name + ".exp_avg", parameter.tensor, master);
    add(name + ".exp_avg_sq", parameter.tensor, master);
    if (has_masters) add(name + ".master", parameter.tensor, master);
    state.entries[name + ".step"] = number<int64_t>(count_of(parameter.name, seed));
  }
  for (const NamedTensor& buffer : make_buffers()) {
    if (buffer.name == "mask_again") continue;
    add("model." + buffer.name, buffer.tensor, buffer.tensor.scalar_type());
  }
  const char* const names[] = {"lr", "beta1", "beta2", "eps", "weight_decay"};
  for (size_t group = 0; group < 3; ++group) {
    for (size_t i = 0; i < 5; ++i) {
      state.entries[absl::StrCat("optimizer.", kGroups[group], ".", names[i])] =
          number<double>(hyper_parameter(group, i, seed));
    }
    state.entries[absl::StrCat("optimizer.", kGroups[group], ".algorithm.AdamW")] =
        number<int64_t>(1);
  }
  state.entries["engine.steps"] = number<int64_t>(static_cast<int64_t>(seed) * 10);
  if (model.has_scaler) {
    state.entries["scaler.scale"] = number<double>(static_cast<double>(seed) * 0.5);
    state.entries["scaler.good_steps"] = number<int64_t>(static_cast<int64_t>(seed) + 1);
  }
  return state;
}

std::string StateRun::differences_from(uint64_t seed) const {
  const at::NoGradGuard no_grad;
  const StateDict state = expected(seed, model_);
  std::string text;
  const auto require = [&text](bool is_equal, const std::string& name) {
    if (!is_equal) absl::StrAppend(&text, name, " differs\n");
  };
  for (const Slice& slice : slices_of_rank()) {
    at::Tensor right = at::zeros_like(slice.values);
    for (const Segment& segment : plan_[slice.unit].layout.segments(slice.range)) {
      const std::string& name = table_[plan_[slice.unit].parameters[segment.parameter]].name;
      const StateEntry& entry = state.entries.at(absl::StrCat(slice.prefix, name, slice.suffix));
      right.narrow(0, segment.buffer_offset - slice.range.begin, segment.numel)
          .copy_(entry.pieces[0].values.narrow(0, segment.parameter_offset, segment.numel));
    }
    require(has_equal_bits(slice.values, right),
            absl::StrCat(slice.prefix, plan_[slice.unit].name, slice.suffix));
  }
  for (size_t i = 0; i < table_.size(); ++i) {
    const std::string& name = table_[i].name;
    if (!plan_.has_place(i)) {
      require(has_equal_bits(table_[i].tensor, state.entries.at("model." + name).tensor()), name);
    }
    if (table_[i].is_trainable) {
      require(optimizer_->step_counts()[i] == count_of(name, seed), name + ".step");
    }
  }
  for (const NamedTensor& buffer : buffers_) {
    if (buffer.name == "mask_again") continue;
    require(has_equal_bits(buffer.tensor.contiguous(),
                           state.entries.at("model." + buffer.name).tensor().contiguous()),
            buffer.name);
  }
  const std::vector<HyperParameter> numbers = optimizer_->groups().hyper_parameters();
  for (size_t i = 0; i < numbers.size(); ++i) {
    require(numbers[i].value == hyper_parameter(i / 5, i % 5, seed),
            absl::StrCat(numbers[i].group, ".", numbers[i].name));
  }
  require(counters_.steps == static_cast<int64_t>(seed) * 10, "steps");
  require(!model_.has_scaler || (counters_.loss_scale == static_cast<double>(seed) * 0.5 &&
                                 counters_.good_steps == static_cast<int64_t>(seed) + 1),
          "scaler");
  return text;
}

std::vector<StateConfiguration> state_configurations(int world) {
  std::vector<StateConfiguration> configurations = {
      {"ddp",
       [](int) {
         return Degrees{1, 1, 1};
       },
       false},
      {"zero1",
       [](int n) {
         return Degrees{1, 1, n};
       },
       false},
      {"zero2",
       [](int n) {
         return Degrees{1, n, n};
       },
       false},
      {"zero3",
       [](int n) {
         return Degrees{n, n, n};
       },
       true},
  };
  for (const Degrees& degrees :
       {Degrees{2, 2, 2}, Degrees{1, 2, 4}, Degrees{2, 4, 4}, Degrees{1, 1, 2}}) {
    if (world % degrees.optimizer != 0) continue;
    configurations.push_back({"hybrid " + to_string(degrees), [degrees](int) { return degrees; },
                              degrees.parameters > 1});
  }
  return configurations;
}

std::string bit_differences(const StateDict& got, const StateDict& expected) {
  std::string text;
  for (const auto& [name, entry] : expected.entries) {
    const auto found = got.entries.find(name);
    if (found == got.entries.end()) {
      absl::StrAppend(&text, name, " is missing\n");
      continue;
    }
    const StateEntry& other = found->second;
    if (other.sizes != entry.sizes || other.dtype != entry.dtype || !other.is_whole()) {
      absl::StrAppend(&text, name, " has another form\n");
    } else if (!has_equal_bits(other.tensor().contiguous().view({-1}),
                               entry.tensor().contiguous().view({-1}))) {
      absl::StrAppend(&text, name, " differs\n");
    }
  }
  for (const auto& [name, entry] : got.entries) {
    if (!expected.entries.contains(name)) absl::StrAppend(&text, name, " is unexpected\n");
  }
  return text;
}

}  // namespace tessera::internal::testing
