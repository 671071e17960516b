#include "tessera/zero/parameter_access.h"

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/refusal.h"
#include "tessera/core/step/parameter_hash.h"
#include "tessera/ddp/replica_sync.h"

namespace tessera {

ParameterAccess::ParameterAccess(ProcessGroup& group, const ParameterTable& table,
                                 const UnitPlan& plan, FlatParameters& flat)
    : group_(group), table_(table), plan_(plan), flat_(flat), ballot_(group, 1) {}

void ParameterAccess::sync(int from_rank, const std::vector<at::Tensor>& others,
                           std::string_view what) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = flat_.values();
  for (size_t i = 0; i < table_.size(); ++i) {
    if (!plan_.has_place(i)) tensors.push_back(table_[i].tensor);
  }
  tensors.insert(tensors.end(), others.begin(), others.end());
  sync_replicas(group_, tensors, from_rank, what);
  flat_.accept();
}

void ParameterAccess::modify(int from_rank, const std::function<void()>& write) {
  const at::NoGradGuard no_grad;
  refuse_together(group_, problem_of(from_rank, write != nullptr), "engine");
  if (write) write();
  refuse_together(group_, find_moved(), "engine");
  sync(from_rank, {}, "modify_parameters");
  for (size_t i = 0; i < table_.size(); ++i) flat_.bump_version(i);
  flat_.accept();
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

/// What hinders modify_parameters, or "". Writes do not: it mends them.
std::string ParameterAccess::find_moved() const {
  const FlatParameters::Finding finding = flat_.inspect_places();
  return describe(finding.violation, table_[finding.parameter].name);
}

std::shared_ptr<void> ParameterAccess::open_scope() {
  group_.barrier("full_parameters");
  ++*open_scopes_;
  return {open_scopes_.get(), [scopes = open_scopes_](void*) { --*scopes; }};
}

uint64_t ParameterAccess::hash() {
  const at::NoGradGuard no_grad;
  const uint64_t hash = hash_parameters(table_);
  ballot_.mine()[0] = static_cast<int64_t>(hash);
  ballot_.exchange("parameter_hash");
  for (int rank = 1; rank < group_.size(); ++rank) {
    TORCH_CHECK(ballot_.of(rank)[0] == ballot_.of(0)[0], "[engine] parameter_hash: rank ", rank,
                " holds other parameters than rank 0; was one written outside "
                "engine->modify_parameters()? engine->modify_parameters(0, []{}) gives all ranks "
                "rank 0's");
  }
  return hash;
}

}  // namespace tessera
