#include "tessera/zero/parameters/parameter_access.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/comm/agreement/own_error.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/step/parameter_hash.h"
#include "tessera/errors.h"
#include "tessera/zero/buffers/replica_sync.h"

namespace tessera::internal {

ParameterAccess::ParameterAccess(ProcessGroup& group, const ParameterTable& table,
                                 const UnitPlan& plan, ParameterStore& store)
    : group_(group), table_(table), plan_(plan), store_(store), all_gather_(group, 1) {}

void ParameterAccess::modify(int from_rank, const std::function<void()>& write) {
  const at::NoGradGuard no_grad;
  store_.finish();
  refuse_on_all_ranks(group_, problem_of(from_rank, write != nullptr), "engine");
  {
    const std::shared_ptr<void> hold = store_.hold_all(GatheredUnits::HoldMode::kWritable);
    if (write) run(write);
    refuse_on_all_ranks(group_, find_moved(), "engine");
    std::vector<at::Tensor> tensors = store_.wholes();
    // Names for errors. Those of the units' buffers stay "", because these can always be written.
    std::vector<std::string> names(tensors.size());
    for (size_t i = 0; i < table_.size(); ++i) {
      if (plan_.has_place(i)) continue;
      tensors.push_back(table_[i].tensor);
      names.push_back(table_[i].name);
    }
    std::string problem;
    for (const auto& unwritten : sync_replicas(group_, tensors, from_rank, "modify_parameters")) {
      problem = absl::StrCat("modify_parameters: parameter '", names[unwritten.index], "' ",
                             unwritten.problem);
    }
    store_.take_wholes();
    refuse_on_all_ranks(group_, problem, "engine");
  }
  store_.announce();
}

void ParameterAccess::run(const std::function<void()>& write) {
  is_writing_ = true;
  const auto end = c10::make_scope_exit([this] { is_writing_ = false; });
  as_own_error(write);
}

std::string ParameterAccess::problem_of(int from_rank, bool has_writer) const {
  if (from_rank < 0 || from_rank >= group_.size()) {
    return absl::StrCat("modify_parameters: got from_rank ", from_rank, ", expected 0 to ",
                        group_.size() - 1, "; name a rank of the world, the same on all");
  }
  if (from_rank == group_.rank() && !has_writer) {
    return absl::StrCat("modify_parameters: got nothing to run on from_rank ", from_rank,
                        ", whose values all ranks take; pass a function there");
  }
  return find_moved();
}

/// Returns why modify_parameters() cannot run: a parameter has left its unit. "" if none has.
/// Writes do not count, because modify_parameters() repairs them.
std::string ParameterAccess::find_moved() const {
  const FlatParameters::Finding finding = store_.flat().inspect_places();
  return describe(finding.violation, table_[finding.parameter].name);
}

/// Returns a scope that keeps `hold` until the scope ends. has_open_scope() is true until then.
std::shared_ptr<void> ParameterAccess::count(std::shared_ptr<void> hold) {
  ++*open_scopes_;
  return {open_scopes_.get(), [scopes = open_scopes_, hold = std::move(hold)](void*) mutable {
            --*scopes;
            hold.reset();
          }};
}

std::shared_ptr<void> ParameterAccess::open_scope() {
  group_.barrier("full_parameters");
  return count(store_.hold_all(GatheredUnits::HoldMode::kReadOnly));
}

std::shared_ptr<void> ParameterAccess::gather(const torch::nn::Module& module) {
  std::set<size_t> units;
  bool is_of_engine = false;
  for (const auto& parameter : module.named_parameters()) {
    for (size_t i = 0; i < table_.size(); ++i) {
      if (!table_[i].tensor.is_same(parameter.value())) continue;
      is_of_engine = true;
      // Parameters without a place (frozen ones) are whole already.
      if (plan_.has_place(i)) units.insert(plan_.place(i).unit);
    }
  }
  TORCH_CHECK(is_of_engine, "[engine] gather: got a module '", module.name(),
              "' without parameters of this engine, expected (part of) the model that was "
              "parallelized");
  return count(store_.hold({units.begin(), units.end()}));
}

std::string ParameterAccess::open_scope_problem(const char* call) const {
  if (!has_open_scope()) return "";
  return absl::StrCat(call,
                      ": called while a full_parameters() or gather() scope is open; end the scope "
                      "first");
}

void ParameterAccess::require_settled(const char* call) {
  const std::string problem = open_scope_problem(call);
  refuse_on_all_ranks(group_, problem.empty() ? find_moved() : problem, "engine");
}

void ParameterAccess::require_unwritten(const char* call) {
  std::string problem = open_scope_problem(call);
  if (problem.empty()) {
    const FlatParameters::Finding finding = store_.inspect();
    problem = describe(finding.violation, table_[finding.parameter].name);
  }
  refuse_on_all_ranks(group_, problem, "engine");
}

uint64_t ParameterAccess::hash() {
  const at::NoGradGuard no_grad;
  store_.finish();
  // Unit by unit, so that only one is whole at a time.
  std::vector<uint64_t> hashes(table_.size());
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    const std::shared_ptr<void> hold = store_.hold({unit});
    for (const size_t index : plan_[unit].parameters) {
      hashes[index] = hash_parameter(table_[index]);
    }
  }
  for (size_t i = 0; i < table_.size(); ++i) {
    if (!plan_.has_place(i)) hashes[i] = hash_parameter(table_[i]);
  }
  const uint64_t hash = combine_hashes(hashes);
  all_gather_.mine()[0] = static_cast<int64_t>(hash);
  all_gather_.exchange("parameter_hash");
  for (int rank = 1; rank < group_.size(); ++rank) {
    if (all_gather_.of(rank)[0] == all_gather_.of(0)[0]) continue;
    throw ErrorOnAllRanks(absl::StrCat(
        "[engine] parameter_hash: rank ", rank,
        " holds other parameters than rank 0; was one written outside "
        "engine->modify_parameters()? engine->modify_parameters(0, []{}) gives all ranks rank "
        "0's"));
  }
  return hash;
}

}  // namespace tessera::internal
