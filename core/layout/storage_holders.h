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
/// a unit: only the memory under the storage is replaced, so all aliases follow, also where
/// parameters are split. Otherwise the parameter gets a new storage, and the old one stays with its
/// other holders. That is correct if all of them are parameters (the slices of one tensor that
/// vector_to_parameters makes, an LSTM whose weights cuDNN has joined). Any other holder would keep
/// reading values that are no longer trained, so such a parameter is refused by name.

/// How many holders of each storage some tensors account for: they themselves, and those that exist
/// only because one of them is a view of it.
class StorageHolders {
 public:
  explicit StorageHolders(const std::vector<at::Tensor>& tensors);

  /// How many more tensors (or handles of the storage) hold the memory of `tensor`, which is one of
  /// them. Local.
  int64_t others(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, int64_t> accounted_;
};

/// What keeps the parameters of `table` from moving to where `plan` and `precision` put them,
/// because somebody holds their memory who could not follow: a line that names the parameter for
/// each. Local.
std::vector<std::string> alias_problems(const ParameterTable& table, const UnitPlan& plan,
                                        const Precision& precision);

/// Whether `tensor` lies in the memory of a parameter of `table` altogether, so that whoever has
/// the parameter has it too. Local; neither needs memory.
bool is_alias(const ParameterTable& table, const at::Tensor& tensor);

}  // namespace tessera::internal
