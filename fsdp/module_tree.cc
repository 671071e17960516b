#include "tessera/fsdp/module_tree.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

namespace tessera::internal {
namespace {

std::string_view without_last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

}  // namespace

ModuleTree::ModuleTree(const torch::nn::Module& model) { add(model, ""); }

// Adds `module`, called `name`, and the modules below it. A module that has several names is
// visited once for each of them, because its children have another name under each.
size_t ModuleTree::add(const torch::nn::Module& module, const std::string& name) {
  const auto [place, is_new] = node_of_.try_emplace(&module, nodes_.size());
  const size_t node = place->second;
  node_called_.emplace(name, node);
  if (is_new) {
    nodes_.push_back({.name = name,
                      .module = &module,
                      .children = {},
                      .owns_parameters = !module.named_parameters(/*recurse=*/false).is_empty()});
  }
  for (const auto& child : module.named_children()) {
    const size_t below = add(*child.value(), name.empty() ? child.key() : name + "." + child.key());
    if (!is_new) continue;
    nodes_[node].children.push_back(below);
    nodes_[node].owns_parameters |= nodes_[below].owns_parameters;
  }
  return node;
}

std::optional<size_t> ModuleTree::find(std::string_view name) const {
  const auto found = node_called_.find(std::string(name));
  if (found == node_called_.end()) return std::nullopt;
  return found->second;
}

std::vector<size_t> ModuleTree::path_of_parameter(std::string_view name) const {
  std::vector<size_t> path;
  std::string_view module = name;
  do {
    module = without_last_part(module);
    const std::optional<size_t> node = find(module);
    TORCH_INTERNAL_ASSERT(node.has_value(), "no module of the model registers a parameter '",
                          std::string(name), "'");
    path.push_back(*node);
  } while (!module.empty());
  return path;
}

std::vector<size_t> common(const std::vector<std::vector<size_t>>& paths) {
  if (paths.empty()) return {};
  std::vector<size_t> shared;
  for (size_t entry : paths.front()) {
    if (std::all_of(paths.begin() + 1, paths.end(), [entry](const std::vector<size_t>& path) {
          return std::find(path.begin(), path.end(), entry) != path.end();
        })) {
      shared.push_back(entry);
    }
  }
  return shared;
}

}  // namespace tessera::internal
