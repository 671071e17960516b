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

/// The tree of a model's modules. A module with several names is one node. Built from what is
/// registered, so the tree is the same on all ranks. Does not use shared_from_this(), so the model
/// may be on the stack.
class ModuleTree {
 public:
  struct Node {
    std::string name;  ///< the module's first name in registration order; "" for the model
    const torch::nn::Module* module;  ///< not owned
    /// Nodes in registration order; a module registered twice occurs twice.
    std::vector<size_t> children;
    bool owns_parameters;  ///< true if the module or any module below it has parameters
  };

  /// `model` must outlive the tree, and its modules must stay registered.
  explicit ModuleTree(const torch::nn::Module& model);

  /// The number of modules, and the node of each. Parents come before children; [0] is the model.
  size_t size() const { return nodes_.size(); }
  const Node& operator[](size_t node) const { return nodes_[node]; }
  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }

  /// Returns the node of the module that has `name` among its names; nothing if no module has.
  std::optional<size_t> find(std::string_view name) const;

  /// Returns the modules that contain the parameter called `name`, innermost first: from the module
  /// that registers it under this name up to the model. Fails an internal assertion if the model
  /// lacks one of them.
  std::vector<size_t> path_of_parameter(std::string_view name) const;

 private:
  size_t add(const torch::nn::Module& module, const std::string& name);

  std::vector<Node> nodes_;
  std::unordered_map<const torch::nn::Module*, size_t> node_of_;
  std::unordered_map<std::string, size_t> node_called_;
};

/// Returns the entries that all of `paths` contain, in the order of paths[0].
std::vector<size_t> common(const std::vector<std::vector<size_t>>& paths);

}  // namespace tessera::internal
