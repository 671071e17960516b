#include "tessera/core/layout/flat_parameters.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <xxhash.h>

#include "tessera/core/access/access_key.h"
#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/layout/storage_holders.h"

namespace tessera::internal {
namespace {

constexpr int64_t kSampleNumel = 64;

/// Ensures that `parameter` has the given dtype and fills its storage, and returns that storage. If
/// both hold already, keeps the present storage, because the parameter's aliases then follow it;
/// else gives the parameter a new one. See Note [Aliases of parameters] in storage_holders.h.
c10::Storage storage_of_its_own(const at::Tensor& parameter, at::ScalarType dtype) {
  if (parameter.scalar_type() != dtype || !fills_storage(parameter)) {
    parameter.set_data(without_memory(parameter, dtype));
  }
  return parameter.storage();
}

std::string access_error(const PlannedUnit& unit) {
  return absl::StrCat("[fsdp] unit '", unit.name,
                      "': its parameters are split over ranks and their memory is free, so they "
                      "cannot be read through ",
                      kWhatIsNotSeen,
                      "; use operators on the parameters or their views, or hold "
                      "engine->gather(module) or engine->full_parameters() meanwhile");
}

}  // namespace

FlatParameters::FlatParameters(const ParameterTable& table, const UnitPlan& plan,
                               Residence residence, const AllocateUnit& allocate, at::Device device,
                               MemoryMeter& meter, Values brought, Observed observed)
    : table_(table),
      plan_(plan),
      residence_(residence),
      meter_(meter),
      is_keyed_(table.size()),
      has_unkeyed_(table.size()),
      versions_(table.size()),
      samples_(table.size()) {
  const c10::NoGradGuard no_grad;
  const StorageHolders holders(table);
  full_.reserve(plan.size());
  for (const PlannedUnit& unit : plan) {
    const FlatLayout& layout = unit.layout;
    const UnitMemory& memory = memory_.emplace_back(allocate(memory_.size()));
    // The values are collected in a temporary buffer of the whole unit, from which this rank's
    // shard is copied. No such buffer is needed if the shard is the whole unit and lies on
    // `device`, or if the values are set later.
    const bool keeps_all = memory.shard_range.numel == layout.numel();
    const bool is_shard =
        brought == Values::kLater || (keeps_all && memory.shard.device() == device);
    const at::Tensor values =
        is_shard ? memory.shard
                 : at::empty({layout.numel()}, at::TensorOptions(layout.dtype()).device(device));
    values.zero_();
    FreeableBuffer& full =
        full_.emplace_back(layout.numel(), layout.dtype(), device, access_error(unit));
    for (size_t position = 0; position < unit.parameters.size(); ++position) {
      const size_t index = unit.parameters[position];
      const at::Tensor& parameter = table[index].tensor;
      const Range range = layout.parameter_range(position);
      if (brought == Values::kOfParameters) view_like(values, range, parameter).copy_(parameter);
      has_unkeyed_[index] = holders.other_holders(parameter) > 0;
      full.adopt(storage_of_its_own(parameter, layout.dtype()), range.begin);
      remove_access_key(parameter);  // it may be a view of another engine's parameter
      if (is_split() || observed == Observed::kYes) is_keyed_[index] = add_access_key(parameter);
    }
    if (!values.is_same(memory.shard)) {
      memory.shard.copy_(values.narrow(0, memory.shard_range.begin, memory.shard_range.numel));
    }
    if (!is_split()) full.attach(memory.whole);
    if (memory.shard.device() != device) class_ = MemoryClass::kHost;
    meter_.add(class_, static_cast<int64_t>(memory.shard.nbytes()));
  }
  accept();
}

FlatParameters::~FlatParameters() {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (is_keyed_[i] != 0) remove_access_key(table_[i].tensor);
  }
  for (size_t unit = 0; unit < full_.size(); ++unit) {
    meter_.remove(class_, static_cast<int64_t>(memory_[unit].shard.nbytes()));
    if (!is_split()) continue;
    if (full_[unit].has_memory()) full_[unit].detach();
    full_[unit].set_access_error(
        absl::StrCat("[fsdp] unit '", plan_[unit].name,
                     "': its parameters were split over ranks and the engine that could gather "
                     "them is gone; copy the model inside engine->full_parameters() before"));
  }
}

std::vector<AccessObserver::Watched> FlatParameters::watched(
    size_t unit, const std::shared_ptr<AccessTarget>& target) const {
  std::vector<AccessObserver::Watched> watched;
  for (size_t position = 0; position < full_[unit].size(); ++position) {
    const size_t index = plan_[unit].parameters[position];
    watched.push_back({.storage = full_[unit].storage(position),
                       .target = target,
                       .has_unkeyed = is_keyed_[index] == 0 || has_unkeyed_[index] != 0});
  }
  return watched;
}

uint64_t FlatParameters::sample(size_t index) const {
  const at::Tensor& tensor = table_[index].tensor;
  if (plan_.has_place(index)) {
    // Returns 0 for split parameters, because the access observer detects writes to them.
    if (is_split() || !lives_here(index)) return 0;
  }
  if (!tensor.is_cpu() || !is_non_overlapping_dense(tensor) || tensor.numel() == 0) return 0;
  const auto nbytes =
      static_cast<size_t>(std::min(tensor.numel(), kSampleNumel)) * tensor.element_size();
  if (!plan_.has_place(index)) return XXH3_64bits(tensor.const_data_ptr(), nbytes);
  // Reads the attached memory, not the tensor, because while a unit is being all-gathered its
  // tensors throw when they are read.
  const at::Tensor& memory = full_[plan_.place(index).unit].memory();
  const auto* data = static_cast<const char*>(memory.const_data_ptr());
  return XXH3_64bits(data + range_of(index).begin * tensor.element_size(), nbytes);
}

Range FlatParameters::range_of(size_t index) const {
  const UnitPlan::Place place = plan_.place(index);
  return plan_[place.unit].layout.parameter_range(place.position);
}

bool FlatParameters::lives_here(size_t index) const {
  const UnitPlan::Place place = plan_.place(index);
  const FreeableBuffer& full = full_[place.unit];
  const at::Tensor& tensor = table_[index].tensor;
  return tensor.layout() == c10::kStrided && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() ==
             full.storage(place.position).unsafeGetStorageImpl() &&
         // Not checked for split units, because operators on other threads may gather and free them
         // now.
         (is_split() || full.is_intact(place.position)) &&
         has_access_key(tensor) == (is_keyed_[index] != 0) &&
         tensor.scalar_type() == plan_[place.unit].layout.dtype() &&
         tensor.numel() == range_of(index).numel && tensor.storage_offset() == 0 &&
         is_non_overlapping_dense(tensor);
}

FlatParameters::Finding FlatParameters::inspect_places() const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (!table_[i].is_trainable && table_[i].tensor.requires_grad()) {
      return {Violation::kUnfrozen, i};
    }
    if (plan_.has_place(i) && !lives_here(i)) return {Violation::kMoved, i};
  }
  return {};
}

FlatParameters::Finding FlatParameters::inspect() const {
  const Finding finding = inspect_places();
  if (finding.violation != Violation::kNone) return finding;
  for (size_t i = 0; i < table_.size(); ++i) {
    // The elements of a protected unit are not compared: nothing can have written them through a
    // tensor, and other ranks may be writing to the unit's memory now.
    const bool is_protected = plan_.has_place(i) && full_[plan_.place(i).unit].is_protected();
    if (table_[i].tensor._version() != versions_[i] ||
        (!is_protected && sample(i) != samples_[i])) {
      return {Violation::kWritten, i};
    }
  }
  return {};
}

void FlatParameters::accept() {
  for (size_t i = 0; i < table_.size(); ++i) {
    versions_[i] = table_[i].tensor._version();
    if (!plan_.has_place(i)) samples_[i] = sample(i);
  }
  for (size_t unit = 0; unit < full_.size(); ++unit) {
    if (!full_[unit].is_forbidden()) accept_values(unit);
  }
}

void FlatParameters::accept_values(size_t unit) {
  for (const size_t index : plan_[unit].parameters) samples_[index] = sample(index);
}

void FlatParameters::bump_version(size_t index) {
  table_[index].tensor.unsafeGetTensorImpl()->bump_version();
}

std::string describe(FlatParameters::Violation violation, const std::string& parameter) {
  switch (violation) {
    case FlatParameters::Violation::kNone:
      return "";
    case FlatParameters::Violation::kMoved:
      return absl::StrCat(
          "parameter '", parameter,
          "' was re-assigned, converted or resized after parallelize and is no longer "
          "what the engine trains; write values inside engine->modify_parameters(), "
          "convert the model before parallelize");
    case FlatParameters::Violation::kWritten:
      return absl::StrCat(
          "parameter '", parameter,
          "' was written outside engine->modify_parameters(); write it inside, so that all ranks "
          "take the new values (an engine->modify_parameters(rank, []{}) now gives all ranks what "
          "`rank` holds), or, if forward writes it, make it a buffer by register_buffer()");
    case FlatParameters::Violation::kUnfrozen:
      return absl::StrCat("parameter '", parameter,
                          "' is frozen in this engine and requires grad now; change what trains by "
                          "engine->set_trainable(), not by requires_grad_()");
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace tessera::internal
