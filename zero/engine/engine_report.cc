#include "tessera/zero/engine/engine_report.h"

#include <map>
#include <string>

#include "tessera/core/options/option_table.h"
#include "tessera/optim/slices/whole_tensors.h"
#include "tessera/zero/step/whole_tensor_exchange.h"

namespace tessera::internal {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

Report::Model model_of(const PersistentState& persistent, const ParameterTable& table) {
  Report::Model model;
  model.type = persistent.model->name();
  std::map<std::string, int64_t> bytes_by_dtype;
  for (const Parameter& parameter : table) {
    const int64_t elements = parameter.tensor.numel();
    const int64_t bytes = bytes_of(parameter.tensor);
    model.parameters += 1;
    model.elements += elements;
    model.bytes += bytes;
    bytes_by_dtype[c10::toString(parameter.tensor.scalar_type())] += bytes;
    if (!parameter.is_trainable) continue;
    model.trained += 1;
    model.trained_elements += elements;
    model.trained_bytes += bytes;
  }
  model.bytes_by_dtype.assign(bytes_by_dtype.begin(), bytes_by_dtype.end());
  model.buffers = static_cast<int64_t>(persistent.buffers.size());
  for (const NamedTensor& buffer : persistent.buffers)
    model.buffer_bytes += bytes_of(buffer.tensor);
  return model;
}

Report::Unit unit_of(const PlannedUnit& planned, const ParameterTable& table) {
  Report::Unit unit;
  unit.name = planned.name;
  unit.kind = planned.kind;
  for (const size_t index : planned.parameters) unit.parameters.push_back(table[index].name);
  unit.elements = planned.layout.numel();
  unit.dtype = c10::toString(planned.precision.parameters);
  unit.bytes = planned.layout.bytes();
  unit.communication_dtype = c10::toString(planned.precision.communication);
  if (planned.kind != UnitKind::kFrozen) {
    unit.communication_bytes =
        unit.elements * static_cast<int64_t>(c10::elementSize(planned.precision.communication));
  }
  return unit;
}

/// Returns the options, with the value in force for each applicable option that the user has not
/// set.
Options in_force(const ResolvedOptions& resolved, int world, bool shares_parameters) {
  Options options = resolved;
  options.degrees = resolved.degrees;
  options.share_parameters = shares_parameters;
  options.on_non_finite = resolved.on_non_finite;
  options.asynchronous_step = resolved.asynchronous_step;
  options.gradient_divide_factor =
      resolved.gradient_divisor == 0.0 ? world : resolved.gradient_divisor;
  if (resolved.residence == Residence::kSplit) {
    options.reshard_after_forward = resolved.reshard_after_forward;
    options.prefetch = resolved.prefetch;
  } else if (resolved.degrees.parameters == 1) {
    options.bucket_bytes = resolved.bucket_bytes;
  }
  return options;
}

Report::Times means_of(const StepTimes::Sums& sums) {
  Report::Times times;
  times.sampled_steps = sums.steps;
  if (sums.steps == 0) return times;
  const double steps = static_cast<double>(sums.steps);
  const auto seconds = [steps](int64_t ns) { return static_cast<double>(ns) / 1e9 / steps; };
  times.forward = seconds(sums.forward);
  times.backward = seconds(sums.backward);
  times.communication = seconds(sums.communication);
  times.overlap = seconds(sums.overlap);
  times.update = seconds(sums.update);
  times.communicated_bytes = static_cast<double>(sums.bytes) / steps;
  return times;
}

}  // namespace

MemorySetting memory_setting(const EngineContext& context, const TrainedParameters& trained,
                             const StepGradients& gradients, int micro_steps) {
  const ResolvedOptions& options = context.parts.options;
  const WholeTensorExchange* const exchange = trained.applier->exchange();
  return {.degrees = options.degrees,
          .micro_steps = micro_steps,
          .is_split = trained.store.flat().is_split(),
          .is_shared = trained.store.is_shared(),
          .updates_in_backward = trained.early_update != nullptr,
          .adds_as_tree = context.is_any_world_size(),
          .units_in_reduction = gradients.reducer().units_in_reduction(),
          .ranks_after_forward = options.reshard_after_forward,
          .offload = options.offload,
          .states = trained.optimizer().states(),
          .optimizer_slice = context.slices.optimizer_slice(),
          .has_average = trained.average != nullptr,
          .whole_tensor_bytes = exchange != nullptr ? exchange->plan().bytes(exchange->rank()) : 0,
          .gathered_direction_bytes = exchange != nullptr ? exchange->gathered_bytes() : 0,
          .comm_hook_bytes = context.persistent.comm_hook.bytes()};
}

GatherCounts gather_counts(const TrainedParameters& trained) {
  const GatheredUnits* const gathered = trained.store.gathered();
  return gathered == nullptr ? GatherCounts{} : gathered->counts();
}

Report report_of(const EngineContext& context, const TrainedParameters& trained,
                 const StepGradients& gradients, const EngineStep& step) {
  const EngineParts& parts = context.parts;
  const PersistentState& persistent = context.persistent;
  Report report;
  report.strategy = parts.options.strategy;
  report.degrees = parts.options.degrees;
  const Options options = in_force(parts.options, parts.group->size(), trained.store.is_shared());
  for (const OptionField& field : option_fields()) {
    report.options.emplace_back(field.name, field.text(options));
  }
  report.rank = parts.group->rank();
  report.world = parts.group->size();
  report.backend = parts.group->backend();
  report.device = parts.group->device().str();
  report.model = model_of(persistent, parts.table);
  for (const PlannedUnit& unit : parts.plan) report.units.push_back(unit_of(unit, parts.table));
  report.steps = step.steps();
  report.last_step = persistent.last_result;
  for (size_t i = 0; i < step.last().used.size(); ++i) {
    if (!parts.table[i].is_trainable || step.last().used[i] != 0) continue;
    report.unused_parameters.push_back(parts.table[i].name);
    report.unused_bytes += bytes_of(parts.table[i].tensor);
  }
  report.times = means_of(context.times.sums());
  if (CommHook* const hook = persistent.comm_hook.hook(); hook != nullptr) {
    report.comm_hook = {.name = hook->name(), .settings = hook->settings(), .bytes = hook->bytes()};
  }
  report.gathers = gather_counts(trained);
  report.memory.now = persistent.meter.now();
  report.memory.peak = persistent.meter.peak();
  report.memory.peak_total = persistent.meter.peak_total_bytes();
  report.memory.micro_steps = step.last().reductions;
  const MemorySetting setting =
      memory_setting(context, trained, gradients, report.memory.micro_steps);
  report.memory.predicted = memory_formula(parts.plan, setting);
  report.memory.predicted_peak = memory_peak_formula(parts.plan, setting);
  return report;
}

}  // namespace tessera::internal
