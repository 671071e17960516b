#include "tessera/zero/engine/batch_norms.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <torch/nn/modules/batchnorm.h>

#include "tessera/sync_batch_norm.h"

namespace tessera::internal {
namespace {

/// Returns D for torch::nn::BatchNorm<D>d; 0 for any other module.
int dimensions_of(const torch::nn::Module& module) {
  if (module.as<torch::nn::BatchNorm1dImpl>() != nullptr) return 1;
  if (module.as<torch::nn::BatchNorm2dImpl>() != nullptr) return 2;
  if (module.as<torch::nn::BatchNorm3dImpl>() != nullptr) return 3;
  return 0;
}

bool is_synchronised(const torch::nn::Module& module) {
  return module.as<nn::SyncBatchNorm1dImpl>() != nullptr ||
         module.as<nn::SyncBatchNorm2dImpl>() != nullptr ||
         module.as<nn::SyncBatchNorm3dImpl>() != nullptr;
}

/// Calls visit(name, module) for `model`, whose name is "", and for all modules in it. Also works
/// for a model on the stack: LibTorch lists a model among its own modules only if a std::shared_ptr
/// holds it.
template <typename Visit>
void visit(const torch::nn::Module& model, const Visit& visit) {
  visit(std::string(), model);
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    visit(module.key(), *module.value());
  }
}

}  // namespace

std::set<const c10::TensorImpl*> batch_norm_parameters(const torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> parameters;
  visit(model, [&](const std::string&, const torch::nn::Module& module) {
    if (dimensions_of(module) == 0 && !is_synchronised(module)) return;
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      parameters.insert(parameter.unsafeGetTensorImpl());
    }
  });
  return parameters;
}

std::vector<std::string> problems_of_batch_norms(const torch::nn::Module& model) {
  std::vector<std::string> problems;
  visit(model, [&](const std::string& name, const torch::nn::Module& module) {
    const int dimensions = dimensions_of(module);
    if (dimensions == 0) return;
    problems.push_back(
        absl::StrCat("[options] requires_sync_batch_norm: is set, but module '", name,
                     "' is a torch::nn::BatchNorm", dimensions,
                     "d, whose statistics are those of one rank's samples; make it a "
                     "tessera::nn::SyncBatchNorm",
                     dimensions, "d (sync_batch_norm.h), or leave the option out"));
  });
  return problems;
}

std::vector<std::string> problems_of_statistics(
    const torch::nn::Module& model, const std::function<bool(std::string_view buffer)>& ignores) {
  std::vector<std::string> problems;
  const auto refuse = [&](const std::string& module, const char* what) {
    problems.push_back(absl::StrCat("[options] reproducible: is set, but module '", module, "' ",
                                    what, ", or leave the option out"));
  };
  visit(model, [&](const std::string& name, const torch::nn::Module& module) {
    if (is_synchronised(module)) {
      return refuse(name,
                    "is a SyncBatchNorm, which normalises over the rows of all ranks at once; use "
                    "GroupNorm or LayerNorm");
    }
    const at::Tensor* const mean = module.named_buffers(/*recurse=*/false).find("running_mean");
    if (mean == nullptr || !mean->defined()) return;
    const std::string buffer = absl::StrCat(name, name.empty() ? "" : ".", "running_mean");
    if (ignores && ignores(buffer)) return;
    refuse(name,
           "keeps running statistics, which are those of the batches of one rank; set its "
           "track_running_stats to false, leave its buffers to yourself by ignores_buffers");
  });
  return problems;
}

std::string first_sync_batch_norm(const torch::nn::Module& model) {
  std::string found;
  visit(model, [&](const std::string& name, const torch::nn::Module& module) {
    if (found.empty() && module.is_training() && is_synchronised(module)) {
      found = name.empty() ? "(the model itself)" : name;
    }
  });
  return found;
}

}  // namespace tessera::internal
