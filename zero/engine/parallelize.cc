#include "tessera/parallelize.h"

#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/core/layout/readable.h"
#include "tessera/core/layout/storage_holders.h"
#include "tessera/core/layout/throwing_storage.h"
#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/options/problems.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/process/error_text.h"
#include "tessera/optim/plan/parameter_groups.h"
#include "tessera/zero/buffers/replica_sync.h"
#include "tessera/zero/engine/batch_norms.h"
#include "tessera/zero/engine/engine_plan.h"
#include "tessera/zero/engine/rebuildable_engine.h"
#include "tessera/zero/parameters/model_change_check.h"
#include "tessera/zero/step/gradient_clip.h"

namespace tessera {
using namespace internal;

namespace {

constexpr const char* kLiesInAnothersMemory =
    "is a parameter of another engine, or a view or alias of one; destroy that engine or clone() "
    "it first";

bool is_anothers(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() &&
         ThrowingStorage::has_taken(tensor.storage());
}

/// Returns a line for each of `parameters` that another engine owns or whose memory cannot be read.
std::vector<std::string> problems_of_memory(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad() && GradientHook::is_taken(tensor)) {
      problems.push_back(absl::StrCat("parameter '", name,
                                      "' belongs to another engine or has a post-accumulate-"
                                      "gradient hook already; destroy that engine or remove the "
                                      "hook first"));
    } else if (is_anothers(tensor)) {
      problems.push_back(absl::StrCat("parameter '", name, "' ", kLiesInAnothersMemory));
    } else if (const std::string unreadable = reading_problem(tensor); !unreadable.empty()) {
      problems.push_back(absl::StrCat("parameter '", name, "' cannot be read: ", unreadable));
    }
  }
  return problems;
}

/// Returns why `table` cannot be trained on `device`, one line each; empty if it can.
std::vector<std::string> problems_of(const ParameterTable& table, at::Device device) {
  std::vector<std::string> problems;
  for (const Parameter& parameter : table) {
    if (parameter.tensor.device() != device) {
      problems.push_back(absl::StrCat("parameter '", parameter.name, "': got device ",
                                      parameter.tensor.device().str(), ", expected ", device.str(),
                                      ", where the process group's tensors lie; move the model "
                                      "there before parallelize"));
    }
    if (parameter.tensor.grad().defined()) {
      problems.push_back(absl::StrCat("parameter '", parameter.name,
                                      "' has a gradient already; call model->zero_grad() first"));
    }
  }
  return problems;
}

std::vector<std::string> problems_of(const std::vector<NamedTensor>& buffers, at::Device device) {
  std::vector<std::string> problems;
  for (const NamedTensor& buffer : buffers) {
    if (buffer.tensor.device() != device) {
      problems.push_back(absl::StrCat("buffer '", buffer.name, "': got device ",
                                      buffer.tensor.device().str(), ", expected ", device.str(),
                                      "; one engine trains a model on one device"));
    } else if (buffer.tensor.layout() != at::kStrided) {
      problems.push_back(absl::StrCat("buffer '", buffer.name,
                                      "': got a sparse tensor, expected a "
                                      "strided one; call to_dense() first"));
    } else if (is_anothers(buffer.tensor)) {
      problems.push_back(absl::StrCat("buffer '", buffer.name, "' ", kLiesInAnothersMemory));
    } else if (const std::string unreadable = reading_problem(buffer.tensor); !unreadable.empty()) {
      problems.push_back(absl::StrCat("buffer '", buffer.name, "' cannot be read: ", unreadable));
    }
  }
  return problems;
}

/// Returns `buffers` without those in a parameter's memory, because they change with the parameter.
std::vector<NamedTensor> without_aliases(std::vector<NamedTensor> buffers,
                                         const ParameterTable& table) {
  std::erase_if(buffers, [&](const NamedTensor& buffer) { return is_alias(table, buffer.tensor); });
  return buffers;
}

/// Returns the parameters of the engine, frozen ones included. A parameter that Options::ignores
/// accepts under one name is left out under all its names.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& model, const Options& options) {
  const auto all = model.named_parameters();
  std::set<const c10::TensorImpl*> ignored;
  for (const auto& parameter : all) {
    if (options.ignores && ask(options.ignores, "[options] ignores", parameter.key())) {
      ignored.insert(parameter.value().unsafeGetTensorImpl());
    }
  }
  std::vector<NamedTensor> parameters;
  for (const auto& parameter : all) {
    if (ignored.count(parameter.value().unsafeGetTensorImpl()) > 0) continue;
    parameters.push_back({parameter.key(), parameter.value()});
  }
  return parameters;
}

/// Returns the table of the engine's parameters. Throws c10::Error that names the parameters whose
/// memory cannot be used.
ParameterTable table_of(const torch::nn::Module& model, const Options& options) {
  std::vector<NamedTensor> parameters = parameters_of(model, options);
  const std::vector<std::string> problems = problems_of_memory(parameters);
  TORCH_CHECK(problems.empty(), absl::StrJoin(problems, "\n"));
  const std::set<const c10::TensorImpl*> kept = options.precision.parameters.has_value()
                                                    ? batch_norm_parameters(model)
                                                    : std::set<const c10::TensorImpl*>();
  return ParameterTable(std::move(parameters), [&kept](const at::Tensor& parameter) {
    return kept.contains(parameter.unsafeGetTensorImpl());
  });
}

WorldTraits traits_of(const ProcessGroup& world) {
  return {.size = world.size(),
          .device = world.device(),
          .backend = std::string(world.backend()),
          .can = world.can()};
}

/// Checks everything about the model and the options that needs no other rank. Sets `buffers` to
/// the buffers that all ranks must have. If anything is wrong, adds lines to `problems` and returns
/// nothing.
std::optional<EngineParts> examine(const torch::nn::Module* model, OptimizerPlan optimizer,
                                   const Options& given, const ProcessGroup& world,
                                   std::vector<NamedTensor>& buffers,
                                   std::vector<std::string>& problems) {
  std::optional<ParameterTable> table;
  if (model != nullptr) table = attempt(problems, [&] { return table_of(*model, given); });
  auto options = resolve(given, table.has_value() ? &*table : nullptr, traits_of(world));
  if (!options.ok()) problems.emplace_back(options.status().message());
  if (model == nullptr) {
    problems.emplace_back("model: got null, expected a module; pass the model");
    return std::nullopt;
  }
  if (table.has_value()) append(problems, problems_of(*table, world.device()));
  const auto found = attempt(problems, [&] { return buffers_of(*model, given.ignores_buffers); });
  if (found.has_value()) {
    append(problems, problems_of(*found, world.device()));
    buffers = *found;
  }
  if (given.requires_sync_batch_norm) append(problems, problems_of_batch_norms(*model));
  if (given.reproducible == Reproducible::kAnyWorldSize) {
    const auto statistics =
        attempt(problems, [&] { return problems_of_statistics(*model, given.ignores_buffers); });
    if (statistics.has_value()) append(problems, *statistics);
  }
  if (!table.has_value()) return std::nullopt;
  auto group_of = attempt(problems, [&] { return optimizer.assign(*table); });
  if (group_of.has_value() && !group_of->ok()) {
    problems.emplace_back(group_of->status().message());
  }
  append(problems, problem_of_group_norms(given, unique_group_names(optimizer.groups)));
  if (!problems.empty()) return std::nullopt;

  std::optional<UnitPlan> plan = plan_units(*model, *table, optimizer, *options, world, problems);
  if (!plan.has_value()) return std::nullopt;
  return EngineParts{.group = nullptr,
                     .table = *std::move(table),
                     .plan = *std::move(plan),
                     .options = *std::move(options),
                     .optimizer = std::move(optimizer),
                     .group_of = **std::move(group_of)};
}

std::vector<at::Tensor> state_of(const ParameterTable& table,
                                 const std::vector<NamedTensor>& buffers) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : table) tensors.push_back(parameter.tensor);
  for (const NamedTensor& buffer : buffers) tensors.push_back(buffer.tensor);
  return tensors;
}

/// Lists the tensors of state_of(table, buffers) that could not take rank 0's values, one a line.
std::string unwritten_text(const std::vector<UnwrittenReplica>& unwritten,
                           const ParameterTable& table, const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& [index, problem] : unwritten) {
    lines.push_back(
        index < table.size()
            ? absl::StrCat("parameter '", table[index].name, "' ", problem)
            : absl::StrCat("buffer '", buffers[index - table.size()].name, "' ", problem));
  }
  return absl::StrJoin(lines, "\n");
}

/// Gives expanded tensors contiguous memory of their own, because elements that share memory cannot
/// be written one by one. Leaves a tensor in place if another tensor uses the same memory.
void give_places(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
    if (StorageHolders({tensor}).other_holders(tensor) > 0) continue;
    tensor.set_data(tensor.detach().contiguous());
  }
}

/// Converts the parameters that have no place in a unit (frozen ones, where parameters are not
/// split) to the dtype in which forward computes, given by `precision`.
void convert_others(const ParameterTable& table, const UnitPlan& plan, const Precision& precision) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (plan.has_place(i)) continue;
    const at::Tensor& tensor = table[i].tensor;
    const at::ScalarType dtype =
        resolve(table[i].precision(precision), tensor.scalar_type()).parameters;
    if (dtype != tensor.scalar_type()) tensor.set_data(tensor.detach().to(dtype));
  }
}

/// Returns a number that no other engine of this world has, counted by rank 0. Collective.
std::string next_engine_number(ProcessGroup& world) {
  static std::atomic<int64_t> engines_made{0};
  return world.all_gather_bytes(std::to_string(engines_made++), "engine number")[0];
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<torch::nn::Module> model,
                                    OptimizerPlan optimizer, const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world) {
  TORCH_CHECK(world != nullptr,
              "[parallelize] world: got null, expected a process group; pass "
              "init_process_group()'s result");
  // All ranks throw the same error here, so peers need no notice of it.
  const CommonErrorScope no_peer_is_told;
  std::vector<std::string> problems;
  std::vector<NamedTensor> buffers;
  std::optional<EngineParts> parts =
      examine(model.get(), std::move(optimizer), options, *world, buffers, problems);
  refuse_on_all_ranks(*world, absl::StrJoin(problems, "\n"), "parallelize");

  buffers = without_aliases(std::move(buffers), parts->table);
  require_equal(*world, fingerprint(*parts, buffers), "parallelize");

  parts->group = duplicate(*world, absl::StrCat("engine ", next_engine_number(*world)));
  // Give all ranks the same state before any tensor moves or is rounded.
  const std::vector<at::Tensor> state = state_of(parts->table, buffers);
  give_places(state);
  const auto unwritten = sync_replicas(*parts->group, state, /*from_rank=*/0, "initial state");
  refuse_on_all_ranks(*parts->group, unwritten_text(unwritten, parts->table, buffers),
                      "parallelize");
  convert_others(parts->table, parts->plan, parts->options.precision);
  const bool keeps_freed_memory = parts->options.keep_freed_memory;
  int64_t model_bytes = 0;
  for (const at::Tensor& tensor : state) model_bytes += static_cast<int64_t>(tensor.nbytes());
  auto engine = std::make_unique<Engine>(
      std::make_unique<RebuildableEngine>(*std::move(parts), std::move(model), std::move(buffers)));
  // The constructor has just moved the values of parameters into units and freed their old memory.
  // `model_bytes` counts all parameters and buffers, also those that stay in place.
  if (keeps_freed_memory) keep_freed_memory(model_bytes);
  return engine;
}

}  // namespace

std::unique_ptr<Engine> parallelize(std::shared_ptr<torch::nn::Module> model,
                                    OptimizerPlan optimizer, const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world) {
  return make_engine(std::move(model), std::move(optimizer), options, world);
}

std::unique_ptr<Engine> parallelize(torch::nn::Module& model, OptimizerPlan optimizer,
                                    const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world) {
  std::shared_ptr<torch::nn::Module> not_owned(std::shared_ptr<void>(), &model);
  return make_engine(std::move(not_owned), std::move(optimizer), options, world);
}

}  // namespace tessera
