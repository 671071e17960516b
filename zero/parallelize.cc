#include "tessera/zero/parallelize.h"

#include <atomic>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/fingerprint.h"
#include "tessera/core/comm/refusal.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/core/step/ballot.h"
#include "tessera/ddp/bucket_rule.h"
#include "tessera/zero/placement.h"
#include "tessera/zero/sharded_engine.h"

namespace tessera {
namespace {

/// Everything about the model and the options that can be said without the other ranks. Throws
/// c10::Error.
ShardedEngine::Parts examine(torch::nn::Module& model, OptimizerPlan optimizer, Options options,
                             int world_size) {
  const absl::Status status = validate(options);
  TORCH_CHECK(status.ok(), std::string(status.message()));
  const Degrees degrees = placement(options.strategy, world_size);

  std::vector<NamedTensor> registered;
  for (const auto& parameter : model.named_parameters()) {
    registered.push_back({parameter.key(), parameter.value()});
  }
  ParameterTable table(std::move(registered));

  std::vector<std::string> problems;
  for (const Parameter& parameter : table) {
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble) {
      problems.push_back(absl::StrCat("parameter '", parameter.name, "': got dtype ",
                                      c10::toString(dtype),
                                      ", expected float or double; 16-bit parameters are not "
                                      "available yet"));
    }
    if (parameter.is_trainable && GradientHook::is_taken(parameter.tensor)) {
      problems.push_back(
          absl::StrCat("parameter '", parameter.name,
                       "' belongs to another engine or has a post-accumulate-gradient "
                       "hook already; destroy that engine or remove the hook first"));
    }
    if (parameter.tensor.grad().defined()) {
      problems.push_back(absl::StrCat("parameter '", parameter.name,
                                      "' has a gradient already; call model->zero_grad() first"));
    }
  }
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.value().defined() && !buffer.value().is_cpu()) {
      problems.push_back(absl::StrCat("buffer '", buffer.key(), "': got device ",
                                      buffer.value().device().str(),
                                      ", expected cpu; one engine trains a model on one device"));
    }
  }
  absl::StatusOr<std::vector<size_t>> group_of = optimizer.assign(table);
  if (!group_of.ok()) problems.emplace_back(group_of.status().message());
  TORCH_CHECK(problems.empty(), absl::StrJoin(problems, "\n"));

  UnitPlan plan(table, bucket_membership(table, options.first_bucket_bytes, options.bucket_bytes),
                world_size);
  return {.group = nullptr,
          .table = std::move(table),
          .plan = std::move(plan),
          .options = options,
          .degrees = degrees,
          .optimizer = std::move(optimizer),
          .group_of = *std::move(group_of),
          .model = nullptr};
}

/// What all ranks must have in common, most telling first.
std::vector<std::string> fingerprint(const ShardedEngine::Parts& parts,
                                     const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> all = lines(parts.options);
  const auto append = [&all](std::vector<std::string> more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  };
  append(parts.table.lines());
  append(parts.optimizer.lines());
  append(parts.plan.lines(parts.table));
  for (const NamedTensor& buffer : buffers) {
    all.push_back(absl::StrCat("buffer ", buffer.name, " ",
                               c10::toString(buffer.tensor.scalar_type()), " [",
                               absl::StrJoin(buffer.tensor.sizes(), ", "), "]"));
  }
  return all;
}

/// A number that no other engine of this world has: rank 0 counts. Collective.
int64_t next_engine_number(ProcessGroup& world) {
  static std::atomic<int64_t> engines_made{0};
  Ballot ballot(world, 1);
  ballot.mine()[0] = engines_made++;
  ballot.exchange("engine number");
  return ballot.of(0)[0];
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<torch::nn::Module> owned,
                                    torch::nn::Module& model, OptimizerPlan optimizer,
                                    Options options, const std::shared_ptr<ProcessGroup>& world) {
  TORCH_CHECK(world != nullptr,
              "[parallelize] world: got null, expected a process group; pass "
              "init_process_group()'s result");
  // A rank that has to refuse does it together with the others, so that none is left waiting.
  std::optional<ShardedEngine::Parts> parts;
  std::string problem;
  try {
    parts.emplace(examine(model, std::move(optimizer), std::move(options), world->size()));
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  refuse_together(*world, problem, "parallelize");

  std::vector<NamedTensor> buffers;
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.value().defined()) buffers.push_back({buffer.key(), buffer.value()});
  }
  require_equal(*world, fingerprint(*parts, buffers), "parallelize");

  parts->group = duplicate(*world, absl::StrCat("engine ", next_engine_number(*world)));
  parts->model = std::move(owned);
  std::vector<at::Tensor> buffer_tensors;
  for (const NamedTensor& buffer : buffers) buffer_tensors.push_back(buffer.tensor);
  return std::make_unique<ShardedEngine>(*std::move(parts), std::move(buffer_tensors));
}

}  // namespace

std::unique_ptr<Engine> parallelize(std::shared_ptr<torch::nn::Module> model,
                                    OptimizerPlan optimizer, Options options,
                                    std::shared_ptr<ProcessGroup> world) {
  TORCH_CHECK(model != nullptr, "[parallelize] model: got null, expected a module");
  torch::nn::Module& module = *model;
  return make_engine(std::move(model), module, std::move(optimizer), std::move(options), world);
}

std::unique_ptr<Engine> parallelize(torch::nn::Module& model, OptimizerPlan optimizer,
                                    Options options, std::shared_ptr<ProcessGroup> world) {
  return make_engine(nullptr, model, std::move(optimizer), std::move(options), world);
}

}  // namespace tessera
