#include "tessera/safetensors.h"

#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/types/span.h>
#include <torch/nn/module.h>

#include "tessera/checkpoint/engine/model_source.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/step/tensor_file.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/layout/strides.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

namespace {

/// Tensors of files as a state: what StateSource::entries() calls them is the caller's choice.
class FileSource : public StateSource {
 public:
  void add(const std::string& name, const TensorFile& file, const SafetensorsTensor& tensor) {
    entries_[name] = {.sizes = tensor.shape,
                      .strides = row_major_strides(tensor.shape),
                      .dtype = tensor.dtype,
                      .pieces = {}};
    places_[name] = {&file, &tensor};
  }

  const std::map<std::string, StateEntry>& entries() const override { return entries_; }
  /// Their headers are checked; values have no checksums.
  std::string problem_of(const std::vector<StateOutline>& /*needed*/) override { return ""; }
  void read(const std::string& name, int64_t begin, const at::Tensor& to) override {
    const Place& place = places_.at(name);
    const auto width = static_cast<int64_t>(to.element_size());
    const absl::Status status =
        place.file->read(*place.tensor, begin * width,
                         absl::MakeSpan(static_cast<char*>(to.mutable_data_ptr()), to.nbytes()));
    TORCH_CHECK(status.ok(), "[safetensors] ", std::string(status.message()));
  }

 private:
  struct Place {
    const TensorFile* file;
    const SafetensorsTensor* tensor;
  };
  std::map<std::string, StateEntry> entries_;
  std::map<std::string, Place> places_;
};

/// Which tensor of which file goes where; made before anything is changed.
class Loading {
 public:
  Loading(const torch::nn::Module& model, const SafetensorsOptions& options) : options_(options) {
    for (const auto& parameter : model.named_parameters()) {
      if (parameter.value().defined()) targets_[parameter.key()] = parameter.value();
    }
    for (const auto& buffer : model.named_buffers()) {
      if (buffer.value().defined()) targets_[buffer.key()] = buffer.value();
    }
  }

  /// What forbids it, a line each; "" if nothing.
  std::string plan(FileSystem& files, const std::vector<std::string>& paths) {
    open(files, paths);
    if (problems_.empty()) {
      for (size_t file = 0; file < files_.size(); ++file) {
        for (const SafetensorsTensor& tensor : files_[file].header().tensors) place(file, tensor);
      }
      find_missing();
    }
    if (problems_.empty()) return "";
    return absl::StrCat("load_safetensors: nothing was changed:\n  ",
                        absl::StrJoin(problems_, "\n  "));
  }

  /// Copies to the tensors that are not of `table`.
  void copy_all_but(const std::set<const void*>& table) const {
    const at::NoGradGuard no_grad;
    for (const Move& move : moves_) {
      at::Tensor to = move.target;
      if (table.contains(to.unsafeGetTensorImpl())) continue;
      FileSource file;
      file.add("", files_[move.file], *move.from);
      const at::Tensor values = at::empty(move.from->shape, move.from->dtype);
      if (values.numel() > 0) file.read("", 0, values);
      to.copy_(values);
    }
  }

  /// The values of the table's parameters, as an engine calls them. Valid as long as this is.
  FileSource source(const ParameterTable& table) const {
    std::map<const void*, std::string> names;
    for (const Parameter& parameter : table) {
      names[parameter.tensor.unsafeGetTensorImpl()] = absl::StrCat("model.", parameter.name);
    }
    FileSource source;
    for (const Move& move : moves_) {
      const auto name = names.find(move.target.unsafeGetTensorImpl());
      if (name != names.end()) source.add(name->second, files_[move.file], *move.from);
    }
    return source;
  }

  const LoadedSafetensors& result() const { return result_; }

 private:
  struct Move {
    at::Tensor target;
    size_t file;
    const SafetensorsTensor* from;
  };

  void open(FileSystem& files, const std::vector<std::string>& paths) {
    if (paths.empty()) problems_.emplace_back("got no file, expected one or more");
    for (const std::string& path : paths) {
      auto opened = TensorFile::open_all(files, path);
      if (!opened.ok()) {
        problems_.emplace_back(opened.status().message());
        continue;
      }
      for (TensorFile& file : *opened) files_.push_back(std::move(file));
    }
  }

  void place(size_t file, const SafetensorsTensor& tensor) {
    const std::string name = options_.rename ? options_.rename(tensor.name) : tensor.name;
    if (name.empty()) return;
    const auto found = targets_.find(name);
    if (found == targets_.end()) {
      result_.unknown.push_back(tensor.name);
      if (!options_.allow_unknown) {
        problems_.push_back(absl::StrCat("'", printable(tensor.name), "' in ", files_[file].path(),
                                         ": the model has no '", printable(name), "'"));
      }
      return;
    }
    if (!placed_.insert(name).second) {
      problems_.push_back(absl::StrCat("'", printable(name), "': got two tensors for it, expected ",
                                       "one; the second is '", printable(tensor.name), "' in ",
                                       files_[file].path()));
    }
    const at::Tensor& target = found->second;
    if (target.sizes() != at::IntArrayRef(tensor.shape)) {
      problems_.push_back(absl::StrCat("'", printable(name), "': got [",
                                       absl::StrJoin(tensor.shape, ", "), "], expected [",
                                       absl::StrJoin(target.sizes(), ", "), "]"));
    }
    has_values_.insert(target.unsafeGetTensorImpl());
    moves_.push_back({target, file, &tensor});
  }

  void find_missing() {
    std::set<const void*> seen;
    for (const auto& [name, target] : targets_) {
      const void* const tensor = target.unsafeGetTensorImpl();
      if (has_values_.count(tensor) > 0 || !seen.insert(tensor).second) continue;
      result_.missing.push_back(name);
      if (!options_.allow_missing) problems_.push_back(absl::StrCat("'", name, "': missing"));
    }
  }

  const SafetensorsOptions& options_;
  std::map<std::string, at::Tensor> targets_;
  std::vector<TensorFile> files_;
  std::vector<Move> moves_;
  std::set<std::string> placed_;
  std::set<const void*> has_values_;  // tensors, under any of their names
  std::vector<std::string> problems_;
  LoadedSafetensors result_;
};

}  // namespace

LoadedSafetensors load_safetensors(torch::nn::Module& model, const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options) {
  PosixFileSystem files;
  Loading loading(model, options);
  const std::string problem = loading.plan(files, paths);
  TORCH_CHECK(problem.empty(), "[safetensors] ", problem);
  loading.copy_all_but({});
  return loading.result();
}

LoadedSafetensors load_safetensors(torch::nn::Module& model, Engine& engine,
                                   const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options) {
  PosixFileSystem files;
  Loading loading(model, options);
  refuse_on_all_ranks(engine.group(), loading.plan(files, paths), "safetensors");
  FileSource files_of_rank = loading.source(engine.parameters());
  ModelSource source(engine.parameters(), engine.units(), files_of_rank,
                     ModelSource::Missing::kStays);
  engine.read_state(source);
  std::set<const void*> of_engine;
  for (const Parameter& parameter : engine.parameters()) {
    of_engine.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  loading.copy_all_but(of_engine);
  return loading.result();
}

}  // namespace tessera
