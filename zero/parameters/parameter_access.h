#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"

namespace tessera::internal {

/// Reads and writes parameters outside the step, for Engine::modify_parameters, full_parameters,
/// gather and parameter_hash.
class ParameterAccess {
 public:
  /// References must outlive it. Collective (allocates from `group`, sends nothing).
  ParameterAccess(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
                  ParameterStore& store);

  /// Does Engine::modify_parameters(). If `write` throws an ErrorOnAllRanks, throws c10::Error; if
  /// `write` throws anything else, throws the same exception. In both cases the caller must abort
  /// the group, because peers wait.
  void modify(int from_rank, const std::function<void()>& write);

  /// Returns true if a function given to modify() runs.
  bool is_writing() const { return is_writing_; }

  /// open_scope() does Engine::full_parameters(), and gather() does Engine::gather().
  /// has_open_scope() returns true if a scope of either is open on this rank.
  std::shared_ptr<void> open_scope();
  std::shared_ptr<void> gather(const torch::nn::Module& module);
  bool has_open_scope() const { return *open_scopes_ > 0; }
  /// If on any rank a scope is open or a parameter has left its unit, throws c10::Error on every
  /// rank, which names those ranks. Collective.
  void require_settled(const char* call);
  /// Like require_settled(), but also throws if a parameter was written outside
  /// modify_parameters(), because `call` would use the written value as the run's own.
  void require_unwritten(const char* call);
  /// Returns what require_settled() says about open scopes on this rank; "" if none is open.
  std::string open_scope_problem(const char* call) const;

  /// Engine's parameter_hash(). Collective.
  uint64_t hash();

  int64_t bytes() const { return all_gather_.bytes(); }

 private:
  void run(const std::function<void()>& write);
  std::string problem_of(int from_rank, bool has_writer) const;
  std::string find_moved() const;
  std::shared_ptr<void> count(std::shared_ptr<void> hold);

  ProcessGroup& group_;
  const ParameterTable& table_;
  const UnitPlan& plan_;
  ParameterStore& store_;
  HostAllGather all_gather_;
  bool is_writing_ = false;
  std::shared_ptr<int> open_scopes_ = std::make_shared<int>(0);
};

}  // namespace tessera::internal
