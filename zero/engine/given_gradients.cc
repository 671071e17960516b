#include "tessera/zero/engine/given_gradients.h"

#include <string_view>
#include <unordered_map>

#include <ATen/ops/aminmax.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/StringUtil.h>

#include "tessera/core/layout/readable.h"

namespace tessera::internal {
namespace {

using IndexByName = std::unordered_map<std::string_view, size_t>;

IndexByName index_by_name(const ParameterTable& table) {
  IndexByName index;
  for (size_t i = 0; i < table.size(); ++i) {
    index.emplace(table[i].name, i);
    for (const std::string& name : table[i].other_names) index.emplace(name, i);
  }
  return index;
}

/// Returns what is wrong with the indices of a sparse gradient in host memory; "" if nothing.
/// LibTorch does not check them: an index beyond the shape would make it write to other memory.
std::string stray_index(const at::Tensor& gradient) {
  if (!gradient.is_sparse() || !gradient.is_cpu() || gradient._nnz() == 0) return "";
  for (int64_t dim = 0; dim < gradient.sparse_dim(); ++dim) {
    const auto [least, most] = at::aminmax(gradient._indices().select(0, dim));
    const bool is_below = least.item<int64_t>() < 0;
    if (!is_below && most.item<int64_t>() < gradient.size(dim)) continue;
    return absl::StrCat("got a sparse element with index ",
                        (is_below ? least : most).item<int64_t>(), " in dimension ", dim,
                        ", expected 0 to ", gradient.size(dim) - 1, "; correct its indices");
  }
  return "";
}

/// Returns why `gradient` cannot be the gradient of `parameter`; "" if it can.
std::string misfit(const at::Tensor& gradient, const Parameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  if (!parameter.is_trainable) {
    return "is of a frozen parameter, expected a trainable one; leave it out";
  }
  if (gradient.sizes() != tensor.sizes()) {
    return absl::StrCat("got shape ", c10::str(gradient.sizes()), ", expected ",
                        c10::str(tensor.sizes()), ", the parameter's; give its whole gradient");
  }
  if (gradient.scalar_type() != tensor.scalar_type()) {
    return absl::StrCat("got ", c10::toString(gradient.scalar_type()), ", expected ",
                        c10::toString(tensor.scalar_type()),
                        ", the parameter's dtype; convert it first");
  }
  if (gradient.device() != tensor.device()) {
    return absl::StrCat("got one on ", gradient.device().str(), ", expected it on ",
                        tensor.device().str(), ", where the parameter lies; move it there first");
  }
  if (gradient.layout() != at::kStrided && gradient.layout() != at::kSparse) {
    return "got another layout than strided and sparse; call to_dense() first";
  }
  const std::string unreadable = reading_problem(gradient);
  return unreadable.empty() ? stray_index(gradient) : absl::StrCat("cannot be read: ", unreadable);
}

}  // namespace

GivenGradients given_gradients(const ParameterTable& table,
                               const std::vector<NamedTensor>& gradients) {
  const IndexByName index = index_by_name(table);
  std::vector<const std::string*> given_as(table.size(), nullptr);
  GivenGradients given;
  std::vector<std::string> problems;
  for (const auto& [name, gradient] : gradients) {
    const auto refuse = [&problems, &name = name](const std::string& what) {
      problems.push_back(absl::StrCat("gradient of '", name, "': ", what));
    };
    const auto found = index.find(name);
    if (found == index.end()) {
      refuse("no parameter of this engine has that name; use those of Engine::parameters()");
      continue;
    }
    if (!gradient.defined()) continue;
    const size_t parameter = found->second;
    if (given_as[parameter] != nullptr) {
      refuse(absl::StrCat("got a second one (the first as '", *given_as[parameter],
                          "'), expected one; give their sum"));
      continue;
    }
    given_as[parameter] = &name;
    const at::Tensor values = in_memory(gradient.detach());
    const std::string problem = misfit(values, table[parameter]);
    if (!problem.empty()) refuse(problem);
    given.placed.push_back({parameter, values});
  }
  given.problem = absl::StrJoin(problems, "\n");
  return given;
}

}  // namespace tessera::internal
