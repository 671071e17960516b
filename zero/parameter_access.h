#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/step/ballot.h"

namespace tessera {

/// Reads and writes of parameters outside the step: what Engine::modify_parameters, full_parameters
/// and parameter_hash do.
class ParameterAccess {
 public:
  /// References must outlive it. Collective (allocates from `group`, sends nothing).
  ParameterAccess(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
                  FlatParameters& flat);

  /// Gives all ranks the parameters of rank `from_rank`, and `others` too. Collective, blocking.
  void sync(int from_rank, const std::vector<at::Tensor>& others, std::string_view what);

  /// Engine::modify_parameters. Exceptions of `write` pass through; peers wait until somebody
  /// aborts the group.
  void modify(int from_rank, const std::function<void()>& write);

  /// Engine::full_parameters, and whether such a scope is open on this rank.
  std::shared_ptr<void> open_scope();
  bool has_open_scope() const { return *open_scopes_ > 0; }

  /// Engine::parameter_hash.
  uint64_t hash();

  int64_t bytes() const { return ballot_.bytes(); }

 private:
  std::string problem_of(int from_rank, bool has_writer) const;
  std::string find_moved() const;

  ProcessGroup& group_;
  const ParameterTable& table_;
  const UnitPlan& plan_;
  FlatParameters& flat_;
  Ballot ballot_;
  std::shared_ptr<int> open_scopes_ = std::make_shared<int>(0);
};

}  // namespace tessera
