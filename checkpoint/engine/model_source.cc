#include "tessera/checkpoint/engine/model_source.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/core/ScalarType.h>

#include "tessera/engine.h"

namespace tessera::internal {

namespace {

constexpr int64_t kChunkBytes = 1 << 20;

}  // namespace

std::map<std::string, at::ScalarType> dtypes_of(Engine& engine) {
  struct Names final : StateSink {
    void begin(const std::vector<StateOutline>& entries) override {
      for (const StateOutline& entry : entries) dtypes[entry.name] = entry.form.dtype;
    }
    void write(size_t, int64_t, const at::Tensor&) override {}
    std::map<std::string, at::ScalarType> dtypes;
  };
  Names names;
  engine.write_state(names);
  return names.dtypes;
}

ModelSource::ModelSource(const ParameterTable& table,
                         const std::map<std::string, at::ScalarType>& dtypes, StateSource& values,
                         Missing missing)
    : values_(values), missing_(missing) {
  const auto add = [&](const std::string& entry, const std::string& value) {
    StateEntry form = values.entries().at(value);
    const auto wanted = dtypes.find(entry);
    // Converting complex values would lose their imaginary part. So the entry stays complex, and is
    // refused later.
    const bool is_kept = wanted == dtypes.end() ||
                         (c10::isComplexType(form.dtype) && !c10::isComplexType(wanted->second));
    if (!is_kept) form.dtype = wanted->second;
    value_of_[entry] = value;
    entries_[entry] = std::move(form);
  };
  std::set<std::string> of_parameters;
  for (const Parameter& parameter : table) {
    std::vector<std::string> names = {parameter.name};
    names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
    std::string value;  // the first of the names "model.<name>" that `values` has; "" if none
    for (const std::string& name : names) {
      const std::string entry = absl::StrCat("model.", name);
      if (!values.entries().contains(entry)) continue;
      of_parameters.insert(entry);
      if (value.empty()) value = entry;
    }
    if (value.empty()) continue;
    add(absl::StrCat("model.", parameter.name), value);
    const std::string master = absl::StrCat("optimizer.", parameter.name, ".master");
    if (dtypes.contains(master)) add(master, value);
  }
  for (const auto& [name, form] : values.entries()) {
    if (!of_parameters.contains(name)) add(name, name);
  }
}

bool ModelSource::leaves(const std::string& name) const {
  return missing_ == Missing::kStays || !name.starts_with("model.");
}

std::string ModelSource::problem_of(const std::vector<StateOutline>& needed) {
  std::vector<StateOutline> values;
  for (const StateOutline& outline : needed) {
    const auto value = value_of_.find(outline.name);
    if (value == value_of_.end()) continue;  // the run keeps its own value
    values.push_back({value->second, values_.entries().at(value->second), outline.ranges});
  }
  return values_.problem_of(values);
}

void ModelSource::read(const std::string& name, int64_t begin, const at::Tensor& to) {
  const std::string& value = value_of_.at(name);
  const at::ScalarType dtype = values_.entries().at(value).dtype;
  if (dtype == to.scalar_type()) return values_.read(value, begin, to);
  const int64_t chunk = kChunkBytes / static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor scratch = at::empty({std::min(chunk, to.numel())}, dtype);
  for (int64_t done = 0; done < to.numel(); done += chunk) {
    const at::Tensor part = scratch.narrow(0, 0, std::min(chunk, to.numel() - done));
    values_.read(value, begin + done, part);
    to.narrow(0, done, part.numel()).copy_(part);
  }
}

}  // namespace tessera::internal
