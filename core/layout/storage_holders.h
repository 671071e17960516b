#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parameter_table.h"
#include "tessera/precision.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Note [Aliases of parameters]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// A model may keep views and aliases of its parameters: a transpose made in the constructor,
/// weight.detach() registered as a buffer, an earlier graph. They share the parameter's storage. A
/// parameter that fills its storage alone and keeps its dtype keeps that storage when it moves into
/// a unit: only the memory under the storage is replaced, so all aliases follow, even if parameters
/// are split. Otherwise the parameter gets a new storage, and the other holders keep the old one.
/// That is correct if all other holders are parameters (the slices of one tensor that
/// vector_to_parameters makes, an LSTM whose weights cuDNN has joined). Any other holder would keep
/// reading values that are no longer trained, so such a parameter is refused by name.

/// Counts how many references to each storage come from the given tensors: the tensors' own
/// references, and the references of base tensors that exist only because one of the given tensors
/// is a view of them.
class StorageHolders {
 public:
  explicit StorageHolders(const std::vector<at::Tensor>& tensors);
  /// Counts the references from the parameters of `table`.
  explicit StorageHolders(const ParameterTable& table);

  /// `tensor` must be one of the constructor's tensors. Returns how many others hold its memory:
  /// tensors that were not passed to the constructor, and handles of the storage. Local.
  int64_t other_holders(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, int64_t> accounted_;
};

/// Returns one line for each parameter of `table` that cannot move to its place under `plan` and
/// `precision`, because its memory has another holder that could not follow. Local.
std::vector<std::string> alias_problems(const ParameterTable& table, const UnitPlan& plan,
                                        const Precision& precision);

/// Returns true if all of `tensor` lies in the memory of a parameter of `table`. Local. Compares
/// storages, not addresses, so it works also if the storage has no memory now.
bool is_alias(const ParameterTable& table, const at::Tensor& tensor);

}  // namespace tessera::internal
