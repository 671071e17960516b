#include "tessera/zero/parameters/model_change_check.h"

#include <algorithm>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/own_error.h"

namespace tessera::internal {
namespace {

using Names = std::vector<std::string>;

/// Appends a text about `names` to `all`: "parameters 'a', 'b' <plural>", or, for one name,
/// "parameter 'a' <singular>". Appends nothing if there are no names.
void describe(const char* kind, const Names& names, const char* singular, const char* plural,
              Names& all) {
  constexpr size_t kMax = 8;
  if (names.empty()) return;
  const Names shown(names.begin(), names.begin() + std::min(names.size(), kMax));
  std::string list = absl::StrCat("'", absl::StrJoin(shown, "', '"), "'");
  if (names.size() > kMax) absl::StrAppend(&list, " and ", names.size() - kMax, " more");
  const bool is_one = names.size() == 1;
  all.push_back(absl::StrCat(kind, is_one ? " " : "s ", list, " ", is_one ? singular : plural));
}

std::set<const c10::TensorImpl*> tensors_of(const std::vector<NamedTensor>& named) {
  std::set<const c10::TensorImpl*> tensors;
  for (const NamedTensor& entry : named) tensors.insert(entry.tensor.unsafeGetTensorImpl());
  return tensors;
}

/// Returns the names of the tensors in `named` that are not in `known`.
Names names_beside(const std::vector<NamedTensor>& named,
                   const std::set<const c10::TensorImpl*>& known) {
  Names names;
  for (const NamedTensor& entry : named) {
    if (known.count(entry.tensor.unsafeGetTensorImpl()) == 0) names.push_back(entry.name);
  }
  return names;
}

}  // namespace

std::vector<NamedTensor> buffers_of(const torch::nn::Module& model,
                                    const std::function<bool(std::string_view)>& ignores) {
  std::vector<NamedTensor> buffers, ignored;
  for (const auto& buffer : model.named_buffers()) {
    if (!buffer.value().defined()) continue;
    const bool is_ignored = ignores && as_own_error([&] { return ignores(buffer.key()); });
    (is_ignored ? ignored : buffers).push_back({buffer.key(), buffer.value()});
  }
  std::erase_if(buffers, [all = tensors_of(ignored)](const NamedTensor& buffer) {
    return all.contains(buffer.tensor.unsafeGetTensorImpl());
  });
  return buffers;
}

std::vector<std::string> lines_of(const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const NamedTensor& buffer : buffers) {
    lines.push_back(absl::StrCat("buffer ", buffer.name, " ",
                                 c10::toString(buffer.tensor.scalar_type()), " [",
                                 absl::StrJoin(buffer.tensor.sizes(), ", "), "]"));
  }
  return lines;
}

struct ModelChangeCheck::Changes {
  Names trainable, frozen, buffers;  // names of what was registered since parallelize
  Names gone_trainable, gone_frozen, gone_buffers;

  Names untrained() const {
    Names all;
    describe("parameter", trainable,
             "was registered after parallelize and is neither trained nor saved; register it "
             "before parallelize, or make a new engine",
             "were registered after parallelize and are neither trained nor saved; register them "
             "before parallelize, or make a new engine",
             all);
    describe_gone("parameter", gone_trainable, all);
    return all;
  }

  void append_unequal(Names& all) const {
    describe("buffer", buffers,
             "was registered after parallelize and is not made equal on all ranks "
             "(Options::buffers); register it before parallelize, name it in ignores_buffers, or "
             "make a new engine",
             "were registered after parallelize and are not made equal on all ranks "
             "(Options::buffers); register them before parallelize, name them in "
             "ignores_buffers, or make a new engine",
             all);
    describe_gone("buffer", gone_buffers, all);
  }

  void append_unsaved(Names& all) const {
    for (const auto& [kind, names] :
         {std::pair("frozen parameter", &frozen), std::pair("buffer", &buffers)}) {
      describe(kind, *names,
               "was registered after parallelize and is not saved; register it before "
               "parallelize, or make a new engine",
               "were registered after parallelize and are not saved; register them before "
               "parallelize, or make a new engine",
               all);
    }
    describe_gone("frozen parameter", gone_frozen, all);
    describe_gone("buffer", gone_buffers, all);
  }

 private:
  static void describe_gone(const char* kind, const Names& names, Names& all) {
    describe(kind, names,
             "is no longer registered in the model but still the engine's; replace modules before "
             "parallelize, or make a new engine",
             "are no longer registered in the model but still the engine's; replace modules "
             "before parallelize, or make a new engine",
             all);
  }
};

ModelChangeCheck::ModelChangeCheck(const torch::nn::Module& model, const ParameterTable& table,
                                   const Options& options)
    : model_(model),
      table_(table),
      ignores_(options.ignores),
      ignores_buffers_(options.ignores_buffers),
      steps_use_buffers_(options.buffers != BufferSync::kOnce),
      buffers_(buffers_of(model, ignores_buffers_)) {}

ModelChangeCheck::Changes ModelChangeCheck::changes() const {
  std::vector<NamedTensor> trained, frozen;
  for (const Parameter& parameter : table_) {
    (parameter.is_trainable ? trained : frozen).push_back({parameter.name, parameter.tensor});
  }
  std::vector<NamedTensor> present;
  std::set<const c10::TensorImpl*> expected = tensors_of(trained);
  expected.merge(tensors_of(frozen));
  for (const auto& parameter : model_.named_parameters()) {
    if (!parameter.value().defined()) continue;
    present.push_back({parameter.key(), parameter.value()});
    if (ignores_ && as_own_error([&] { return ignores_(parameter.key()); })) {
      expected.insert(parameter.value().unsafeGetTensorImpl());
    }
  }
  const std::vector<NamedTensor> buffers = buffers_of(model_, ignores_buffers_);

  Changes changes;
  std::set<const c10::TensorImpl*> seen;
  for (const NamedTensor& entry : present) {
    if (expected.count(entry.tensor.unsafeGetTensorImpl()) > 0) continue;
    // A parameter with several names is listed only once.
    if (!seen.insert(entry.tensor.unsafeGetTensorImpl()).second) continue;
    (entry.tensor.requires_grad() ? changes.trainable : changes.frozen).push_back(entry.name);
  }
  changes.gone_trainable = names_beside(trained, tensors_of(present));
  changes.gone_frozen = names_beside(frozen, tensors_of(present));
  changes.buffers = names_beside(buffers, tensors_of(buffers_));
  changes.gone_buffers = names_beside(buffers_, tensors_of(buffers));
  return changes;
}

std::string ModelChangeCheck::untrained() const {
  const Changes found = changes();
  Names all = found.untrained();
  if (steps_use_buffers_) found.append_unequal(all);
  return absl::StrJoin(all, "; ");
}

std::string ModelChangeCheck::unsaved() const {
  const Changes found = changes();
  Names all = found.untrained();
  found.append_unsaved(all);
  return absl::StrJoin(all, "; ");
}

}  // namespace tessera::internal
