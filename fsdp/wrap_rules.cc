#include "tessera/wrap_rules.h"

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "tessera/core/process/error_text.h"
#include "tessera/fsdp/module_tree.h"

namespace tessera {
using namespace internal;

namespace {

using Units = std::vector<std::vector<std::string>>;

template <typename... Types>
bool is_a(const torch::nn::Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

class BlockSearch {
 public:
  explicit BlockSearch(const torch::nn::Module& model) : tree_(model), is_done_(tree_.size()) {
    look_into(0);
  }

  Units units() && { return std::move(units_); }

 private:
  void look_into(size_t node) {
    const std::vector<size_t>& children = tree_[node].children;
    const bool is_container =
        is_a<torch::nn::ModuleListImpl, torch::nn::SequentialImpl>(*tree_[node].module);
    for (size_t child : children) {
      if (is_done_[child] || !tree_[child].owns_parameters) continue;
      is_done_[child] = true;
      if (is_container && is_repeated(children, child)) {
        units_.push_back({tree_[child].name});
      } else {
        look_into(child);
      }
    }
  }

  bool is_repeated(const std::vector<size_t>& siblings, size_t node) const {
    const torch::nn::Module& module = *tree_[node].module;
    return std::count_if(siblings.begin(), siblings.end(), [&](size_t sibling) {
             const torch::nn::Module& other = *tree_[sibling].module;
             return typeid(other) == typeid(module);
           }) > 1;
  }

  ModuleTree tree_;
  std::vector<bool> is_done_;
  Units units_;
};

class SizeSearch {
 public:
  SizeSearch(const torch::nn::Module& model, int64_t least_numel)
      : tree_(model),
        least_numel_(least_numel),
        is_done_(tree_.size()),
        parameters_within_(tree_.size()) {
    std::unordered_map<const c10::TensorImpl*, size_t> index_of;
    std::vector<std::vector<std::vector<size_t>>> paths;
    for (const auto& parameter : model.named_parameters()) {
      const auto [place, is_new] =
          index_of.try_emplace(parameter.value().unsafeGetTensorImpl(), numels_.size());
      if (is_new) {
        numels_.push_back(parameter.value().numel());
        paths.emplace_back();
      }
      paths[place->second].push_back(tree_.path_of_parameter(parameter.key()));
    }
    for (size_t parameter = 0; parameter < paths.size(); ++parameter) {
      for (size_t node : common(paths[parameter])) parameters_within_[node].push_back(parameter);
    }
    for (size_t child : tree_[0].children) visit(child);
  }

  Units units() && { return std::move(units_); }

 private:
  void visit(size_t node) {
    if (is_done_[node]) return;
    is_done_[node] = true;
    const torch::nn::Module& module = *tree_[node].module;
    if (!is_a<torch::nn::MultiheadAttentionImpl>(module)) {
      for (size_t child : tree_[node].children) visit(child);
    }
    if (is_a<torch::nn::ModuleListImpl, torch::nn::ModuleDictImpl>(module)) return;
    int64_t free_numel = 0;
    for (size_t parameter : parameters_within_[node]) free_numel += numels_[parameter];
    if (free_numel < least_numel_) return;
    // The module becomes a unit. Its parameters no longer count when modules that contain it are
    // visited.
    for (size_t parameter : parameters_within_[node]) numels_[parameter] = 0;
    units_.push_back({tree_[node].name});
  }

  ModuleTree tree_;
  int64_t least_numel_;
  std::vector<bool> is_done_;
  // For each parameter its number of elements; 0 once a chosen module has the parameter.
  std::vector<int64_t> numels_;
  // parameters_within_[node]: the parameters all of whose names lie below module `node`.
  std::vector<std::vector<size_t>> parameters_within_;
  Units units_;
};

}  // namespace

WrapPolicy wrap_blocks() {
  return {.name = "wrap_blocks",
          .choose = [](const torch::nn::Module& model) { return BlockSearch(model).units(); }};
}

WrapPolicy wrap_if(
    std::string rule,
    std::function<bool(std::string_view name, const torch::nn::Module& module)> accepts) {
  TORCH_CHECK(accepts, "[wrap] ", rule,
              ": got an empty function, expected a predicate on name and module; pass one");
  auto choose = [rule, accepts = std::move(accepts)](const torch::nn::Module& model) {
    const ModuleTree tree(model);
    Units units;
    for (size_t node = 1; node < tree.size(); ++node) {
      if (tree[node].owns_parameters &&
          ask(accepts, absl::StrCat("[wrap] ", rule, ": its predicate"), tree[node].name,
              *tree[node].module)) {
        units.push_back({tree[node].name});
      }
    }
    TORCH_CHECK(!units.empty(), "[wrap] ", rule,
                ": got no module of this model that it accepts and that owns parameters, expected "
                "one or more; correct the rule, or use wrap_whole() for a single unit");
    return units;
  };
  return {.name = std::move(rule), .choose = std::move(choose)};
}

WrapPolicy wrap_by_size(int64_t least_numel) {
  TORCH_CHECK(least_numel >= 1, "[wrap] wrap_by_size: got ", least_numel,
              ", expected 1 or more elements; pass the least number of elements of a unit");
  return {.name = absl::StrCat("wrap_by_size(", least_numel, ")"),
          .choose = [least_numel](const torch::nn::Module& model) {
            return SizeSearch(model, least_numel).units();
          }};
}

WrapPolicy wrap_modules(std::vector<std::vector<std::string>> units) {
  std::string name = "wrap_modules(";
  for (const std::vector<std::string>& unit : units) {
    absl::StrAppend(&name, "{", absl::StrJoin(unit, ", "), "}");
  }
  return {.name = name + ")",
          .choose = [units = std::move(units)](const torch::nn::Module&) { return units; }};
}

WrapPolicy wrap_whole() {
  return {.name = "wrap_whole", .choose = [](const torch::nn::Module&) { return Units(); }};
}

}  // namespace tessera
