#include "tessera/parameter_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera {
using namespace internal;

namespace {

std::string quoted(const std::string& name) { return "'" + name + "'"; }

bool is_supported(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kBFloat16 ||
         dtype == c10::kHalf;
}

/// Returns true if the memory of `tensor` has addresses, as training needs.
bool has_addresses(const at::Tensor& tensor) {
  return tensor.device().is_cpu() || tensor.device().is_cuda();
}

/// Returns why one tensor cannot be trained as a parameter.
std::vector<std::string> problems_of(const Parameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const std::string subject = "parameter " + quoted(parameter.name) + ": got ";
  std::vector<std::string> problems;
  if (!has_addresses(tensor)) {
    problems.push_back(subject + "device " + tensor.device().str() +
                       ", expected cpu or cuda; move the model there before parallelize");
  }
  if (tensor.layout() != c10::kStrided) {
    problems.push_back(subject + "layout " + c10::str(tensor.layout()) +
                       ", expected Strided; make it dense before parallelize");
  }
  if (!is_supported(tensor.scalar_type())) {
    problems.push_back(subject + "dtype " + c10::toString(tensor.scalar_type()) +
                       ", expected Float, Double, BFloat16 or Half; register other tensors as "
                       "buffers");
  }
  if (!tensor.is_leaf()) {
    problems.push_back(subject +
                       "the result of an operation, expected a leaf; register tensor.detach()");
  }
  if (tensor.is_inference()) {
    problems.push_back(subject +
                       "a tensor made in inference mode, expected a normal one; clone it outside "
                       "InferenceMode");
  }
  return problems;
}

/// The addresses from the first to the last byte of a tensor.
struct Extent {
  uintptr_t begin;
  uintptr_t end;
  size_t parameter;
};

std::vector<Extent> extents_of(const std::vector<Parameter>& parameters) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    if (tensor.layout() != c10::kStrided || !has_addresses(tensor) || tensor.numel() == 0) {
      continue;
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    extents.push_back(
        {begin, begin + static_cast<uintptr_t>(extent_numel(tensor)) * tensor.element_size(), i});
  }
  return extents;
}

std::vector<std::string> overlaps_in(const std::vector<Parameter>& parameters) {
  std::vector<std::string> problems;
  std::vector<Extent> extents = extents_of(parameters);
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.parameter) < std::pair(b.begin, b.parameter);
  });
  const Extent* widest = nullptr;
  for (const Extent& extent : extents) {
    if (widest != nullptr && extent.begin < widest->end) {
      const auto [first, second] = std::minmax(widest->parameter, extent.parameter);
      problems.push_back("parameters " + quoted(parameters[first].name) + " and " +
                         quoted(parameters[second].name) +
                         ": got two tensors in overlapping memory, expected separate memory; to "
                         "tie them, register one tensor under both names");
    }
    if (widest == nullptr || extent.end > widest->end) widest = &extent;
  }
  return problems;
}

std::vector<std::string> device_mix_in(const std::vector<Parameter>& parameters) {
  std::map<std::string, std::string> first_on;
  for (const Parameter& parameter : parameters) {
    first_on.emplace(parameter.tensor.device().str(), parameter.name);
  }
  if (first_on.size() < 2) return {};
  std::string list;
  for (const auto& [device, name] : first_on) {
    list += (list.empty() ? "" : ", ") + device + " (" + quoted(name) + ")";
  }
  return {"devices: got parameters on " + list +
          ", expected one device per engine; move the model to one device"};
}

std::string join(c10::IntArrayRef values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

}  // namespace

Precision Parameter::precision(const Precision& wanted) const {
  Precision own = wanted;
  const bool is_narrower = wanted.parameters.has_value() &&
                           c10::elementSize(*wanted.parameters) < c10::elementSize(dtype);
  if (keeps_dtype && is_narrower) own.parameters.reset();
  return own;
}

ParameterTable::ParameterTable(std::vector<NamedTensor> registered,
                               const std::function<bool(const at::Tensor&)>& keeps_dtype) {
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;
  for (NamedTensor& entry : registered) {
    if (!entry.tensor.defined()) continue;
    const auto [place, is_new] =
        index_of.try_emplace(entry.tensor.unsafeGetTensorImpl(), parameters_.size());
    if (is_new) {
      const bool is_trainable = entry.tensor.requires_grad();
      const at::ScalarType dtype = entry.tensor.scalar_type();
      const bool keeps = keeps_dtype && keeps_dtype(entry.tensor);
      parameters_.push_back({.name = std::move(entry.name),
                             .other_names = {},
                             .tensor = std::move(entry.tensor),
                             .dtype = dtype,
                             .is_trainable = is_trainable,
                             .keeps_dtype = keeps});
    } else {
      parameters_[place->second].other_names.push_back(std::move(entry.name));
    }
  }

  std::vector<std::string> problems = device_mix_in(parameters_);
  for (const Parameter& parameter : parameters_) {
    for (std::string& problem : problems_of(parameter)) problems.push_back(std::move(problem));
  }
  for (std::string& problem : overlaps_in(parameters_)) problems.push_back(std::move(problem));
  if (problems.empty()) return;
  std::string text;
  for (const std::string& problem : problems) text += "\n  [layout] " + problem;
  TORCH_CHECK(false, "[layout] this model cannot be parallelized:", text);
}

ParameterTable ParameterTable::with_trainable(const std::vector<bool>& is_trainable) const {
  TORCH_INTERNAL_ASSERT(is_trainable.size() == size());
  ParameterTable table = *this;
  for (size_t i = 0; i < size(); ++i) table.parameters_[i].is_trainable = is_trainable[i];
  return table;
}

std::vector<std::string> ParameterTable::lines() const {
  std::vector<std::string> lines;
  lines.reserve(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    std::string line = "parameter " + std::to_string(i) + " " + quoted(parameter.name);
    for (const std::string& name : parameter.other_names) line += " = " + quoted(name);
    line += std::string(": ") + c10::toString(parameter.tensor.scalar_type()) + " shape " +
            join(parameter.tensor.sizes()) + " strides " + join(flat_strides(parameter.tensor)) +
            (parameter.is_trainable ? " trainable" : " frozen");
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera
