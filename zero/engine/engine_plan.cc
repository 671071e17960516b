#include "tessera/zero/engine/engine_plan.h"

#include <utility>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/layout/storage_holders.h"
#include "tessera/core/options/problems.h"
#include "tessera/ddp/bucket_rule.h"
#include "tessera/fsdp/unit_membership.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/step_sums.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/wrap_rules.h"
#include "tessera/zero/parameters/model_change_check.h"

namespace tessera::internal {
namespace {

/// Returns why kernels cannot process the units of `plan` on the device; "" if they can.
std::string problem_of_kernels(const UnitPlan& plan, const OptimizerPlan& optimizer,
                               const ResolvedOptions& options, const ProcessGroup& world) {
  if (world.can().completes_on_host) return "";
  const std::string without = without_kernels(optimizer);
  if (!without.empty() && options.offload == Offload::kNone) {
    return absl::StrCat("optimizer: got ", without, " on ", world.device().str(),
                        ", expected one that has kernels; set offload to update on the host");
  }
  const auto api = cuda::load_api();
  if (!api.ok()) return std::string(api.status().message());
  return cuda::problem_of(plan, world.size());
}

/// Returns why `optimizer` cannot update in backward; "" if it can. In backward a rank has only its
/// slice of one unit's gradient at a time, so an algorithm that needs a parameter's whole gradient
/// cannot update there.
std::string problem_of_whole_tensors(const OptimizerPlan& optimizer,
                                     const ResolvedOptions& options) {
  if (!options.optimizer_in_backward) return "";
  for (size_t group = 0; group <= optimizer.groups.size(); ++group) {
    const Algorithm& algorithm = optimizer.algorithm(group);
    if (algorithm.make_whole == nullptr) continue;
    return absl::StrCat(
        "optimizer_in_backward: is set beside ", algorithm.name,
        ", whose updates depend on whole parameters, of which ranks exchange "
        "what they have in step(); leave it out, or choose an elementwise optimizer");
  }
  return "";
}

}  // namespace

std::optional<UnitPlan> plan_units(const torch::nn::Module& model, const ParameterTable& table,
                                   const OptimizerPlan& optimizer, const ResolvedOptions& options,
                                   const ProcessGroup& world, std::vector<std::string>& problems) {
  auto membership = attempt(problems, [&] {
    return options.residence == Residence::kSplit ? unit_membership(model, table, options.wrap)
                                                  : bucket_membership(table, options.bucket_bytes);
  });
  if (!membership.has_value()) return std::nullopt;
  UnitPlan plan(table, *std::move(membership), world.size(), options.precision);
  append(problems, alias_problems(table, plan, options.precision));
  append(problems, problem_of_kernels(plan, optimizer, options, world));
  append(problems, problem_of_whole_tensors(optimizer, options));
  if (!problems.empty()) return std::nullopt;
  return plan;
}

std::vector<std::string> fingerprint(const EngineParts& parts,
                                     const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> all = lines(parts.options);
  if (parts.options.reproducible == Reproducible::kAnyWorldSize) {
    all.push_back(absl::StrCat("intra-op threads ", at::get_num_threads()));
  }
  append(all, parts.table.lines());
  append(all, parts.optimizer.lines());
  // Predicates cannot be compared, so compare the groups that they select.
  for (size_t i = 0; i < parts.group_of.size(); ++i) {
    const size_t group = parts.group_of[i];
    all.push_back(absl::StrCat(
        "parameter '", parts.table[i].name, "' trains under ",
        group == 0 ? "the defaults"
                   : absl::StrCat("group '", parts.optimizer.groups[group - 1].name, "'")));
  }
  append(all, lines_of_whole_states(parts.optimizer, parts.table, parts.group_of));
  append(all, parts.plan.lines(parts.table));
  append(all, lines_of(buffers));
  return all;
}

}  // namespace tessera::internal
