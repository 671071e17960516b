#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::internal {

/// The modules of a model, each once, however many names it has. Built from what is registered, so
/// it is the same on all ranks. Does not use shared_from_this(), so the model may be on the stack.
class ModuleTree {
 public:
  struct Node {
    std::string name;                 ///< the first one in registration order; "" is the model
    const torch::nn::Module* module;  ///< not owned
    std::vector<size_t> children;     ///< as registered: one module may occur twice
    bool owns_parameters;             ///< itself or anywhere below
  };

  /// `model` must outlive the tree and keep its modules.
  explicit ModuleTree(const torch::nn::Module& model);

  /// Parents come before children; [0] is the model.
  size_t size() const { return nodes_.size(); }
  const Node& operator[](size_t node) const { return nodes_[node]; }
  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }

  /// Returns the module that has `name` among its names.
  std::optional<size_t> find(std::string_view name) const;

  /// Returns the modules around a parameter, from the one that registers it under `name` up to the
  /// model. Asserts that there is one.
  std::vector<size_t> path_of_parameter(std::string_view name) const;

 private:
  size_t add(const torch::nn::Module& module, const std::string& name);

  std::vector<Node> nodes_;
  std::unordered_map<const torch::nn::Module*, size_t> node_of_;
  std::unordered_map<std::string, size_t> node_called_;
};

/// Returns what all of `paths` contain, in the order of the first one.
std::vector<size_t> common(const std::vector<std::vector<size_t>>& paths);

}  // namespace tessera::internal
