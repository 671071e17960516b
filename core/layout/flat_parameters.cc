#include "tessera/core/layout/flat_parameters.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <xxhash.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera {
namespace {

constexpr int64_t kSampleNumel = 64;

uint64_t sample(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !is_non_overlapping_dense(tensor) || tensor.numel() == 0) return 0;
  const int64_t numel = std::min(tensor.numel(), kSampleNumel);
  return XXH3_64bits(tensor.const_data_ptr(), static_cast<size_t>(numel) * tensor.element_size());
}

}  // namespace

FlatParameters::FlatParameters(const ParameterTable& table, const UnitPlan& plan,
                               const Allocate& allocate, MemoryMeter& meter)
    : table_(table), plan_(plan), meter_(meter), versions_(table.size()), samples_(table.size()) {
  for (const PlannedUnit& unit : plan) {
    at::Tensor values = allocate(unit.layout.numel(), unit.layout.dtype());
    values.zero_();
    for (size_t position = 0; position < unit.parameters.size(); ++position) {
      move_into(values, unit.layout.parameter_range(position),
                table[unit.parameters[position]].tensor);
    }
    meter_.add(MemoryClass::kParameters, unit.layout.bytes());
    values_.push_back(std::move(values));
  }
  accept();
}

FlatParameters::~FlatParameters() {
  for (const PlannedUnit& unit : plan_) {
    meter_.remove(MemoryClass::kParameters, unit.layout.bytes());
  }
}

bool FlatParameters::lives_here(size_t index) const {
  const UnitPlan::Place place = plan_.place(index);
  return lives_in(values_[place.unit], plan_[place.unit].layout.parameter_range(place.position),
                  table_[index].tensor);
}

FlatParameters::Finding FlatParameters::inspect_places() const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (!plan_.has_place(i)) {
      if (table_[i].tensor.requires_grad()) return {Violation::kUnfrozen, i};
    } else if (!lives_here(i)) {
      return {Violation::kMoved, i};
    }
  }
  return {};
}

FlatParameters::Finding FlatParameters::inspect() const {
  const Finding finding = inspect_places();
  if (finding.violation != Violation::kNone) return finding;
  for (size_t i = 0; i < table_.size(); ++i) {
    const at::Tensor& tensor = table_[i].tensor;
    if (tensor._version() != versions_[i] || sample(tensor) != samples_[i]) {
      return {Violation::kWritten, i};
    }
  }
  return {};
}

void FlatParameters::accept() {
  for (size_t i = 0; i < table_.size(); ++i) {
    versions_[i] = table_[i].tensor._version();
    samples_[i] = sample(table_[i].tensor);
  }
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
          "`rank` holds)");
    case FlatParameters::Violation::kUnfrozen:
      return absl::StrCat(
          "parameter '", parameter,
          "' was frozen at parallelize and requires grad now; set requires_grad before "
          "parallelize, or make a new engine");
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace tessera
