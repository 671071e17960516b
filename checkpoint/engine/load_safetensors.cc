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
#include "tessera/core/layout/read_only_memory.h"
#include "tessera/core/layout/strides.h"
#include "tessera/core/process/error_text.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

namespace {

/// Presents tensors from files as a state. The caller of add() chooses each tensor's name in
/// StateSource::entries().
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
  /// Nothing to verify: headers are checked already, and values have no checksums.
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

/// Loads tensors from files into a model. plan() decides which tensor of which file goes where,
/// before anything is changed.
class Loading {
 public:
  Loading(const torch::nn::Module& model, const SafetensorsOptions& options) : options_(options) {
    for (const auto& parameter : model.named_parameters()) add(parameter.key(), parameter.value());
    parameters_ = targets_.size();
    for (const auto& buffer : model.named_buffers()) add(buffer.key(), buffer.value());
  }

  /// Opens the files `paths` and plans the load. Returns why it is impossible, one line per reason;
  /// "" if it is possible.
  std::string plan(FileSystem& files, const std::vector<std::string>& paths) {
    open(files, paths);
    if (problems_.empty()) {
      for (size_t file = 0; file < files_.size(); ++file) {
        for (const SafetensorsTensor& tensor : files_[file].header().tensors) place(file, tensor);
      }
      find_missing();
      if (problems_.empty()) find_unwritable();
    }
    if (problems_.empty()) return "";
    return absl::StrCat("load_safetensors: nothing was changed:\n  ",
                        absl::StrJoin(problems_, "\n  "));
  }

  /// Returns true if a parameter of the model is one of `tensors`, or the model has no parameters.
  bool has_any(const std::set<const void*>& tensors) const {
    bool is_there = parameters_ == 0;
    for (const auto& [name, target] : targets_) {
      is_there = is_there || tensors.contains(target.tensor.unsafeGetTensorImpl());
    }
    return is_there;
  }

  /// Returns what this rank loads, for comparison across ranks: files, and which tensor goes to
  /// which name.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const TensorFile& file : files_) {
      const absl::StatusOr<std::string> text = file.fingerprint();
      TORCH_CHECK(text.ok(), "[safetensors] ", std::string(text.status().message()));
      lines.push_back(absl::StrCat("a file of ", *text));
    }
    for (const Move& move : moves_) {
      lines.push_back(absl::StrCat("'", move.name, "' from '", printable(move.from->name), "'"));
    }
    return lines;
  }

  /// Tensors and their new values.
  using Values = std::vector<std::pair<at::Tensor, at::Tensor>>;
  /// Returns each target tensor that is not among `tensors`, with its whole new values.
  Values read_all_but(const std::set<const void*>& tensors) const {
    Values values;
    for (const Move& move : moves_) {
      if (tensors.contains(move.target.unsafeGetTensorImpl())) continue;
      values.emplace_back(move.target, read(move));
    }
    return values;
  }

  /// Copies all values, one tensor at a time.
  void copy() const {
    const at::NoGradGuard no_grad;
    const ReadOnlyMemory read_only;
    for (const Move& move : moves_) {
      at::Tensor to = move.target;
      // plan() has checked that read-only tensors have the new values already.
      if (!read_only.holds(to)) to.copy_(read(move));
    }
  }

  /// Returns a source of the table's parameter values under the engine's names. It is valid as long
  /// as this object.
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
  struct Target {
    at::Tensor tensor;
    size_t order;  // index in the order of registration
  };
  struct Move {
    std::string name;
    at::Tensor target;
    size_t order;  // the target's Target::order
    size_t file;
    const SafetensorsTensor* from;
  };

  void add(const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) targets_[name] = {tensor, targets_.size()};
  }

  at::Tensor read(const Move& move) const {
    FileSource file;
    file.add("", files_[move.file], *move.from);
    at::Tensor values = at::empty(move.from->shape, move.from->dtype);
    if (values.numel() > 0) file.read("", 0, values);
    return values;
  }

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
    const auto& [target, order] = found->second;
    if (c10::isComplexType(tensor.dtype) && !target.is_complex()) {
      problems_.push_back(absl::StrCat("'", printable(name), "': got complex numbers, expected ",
                                       c10::toString(target.scalar_type())));
    }
    if (target.sizes() != at::IntArrayRef(tensor.shape)) {
      problems_.push_back(absl::StrCat("'", printable(name), "': got [",
                                       absl::StrJoin(tensor.shape, ", "), "], expected [",
                                       absl::StrJoin(target.sizes(), ", "), "]"));
    }
    Move move{name, target, order, file, &tensor};
    const auto [known, is_new] = move_of_.try_emplace(target.unsafeGetTensorImpl(), moves_.size());
    if (is_new) {
      moves_.push_back(std::move(move));
    } else if (order < moves_[known->second].order) {
      moves_[known->second] = std::move(move);
    }
  }

  void find_missing() {
    std::set<const void*> seen;
    for (const auto& [name, target] : targets_) {
      const void* const tensor = target.tensor.unsafeGetTensorImpl();
      if (move_of_.contains(tensor) || !seen.insert(tensor).second) continue;
      result_.missing.push_back(name);
      if (!options_.allow_missing) problems_.push_back(absl::StrCat("'", name, "': missing"));
    }
  }

  /// Adds a problem for each tensor that lies in read-only memory and does not have its new values
  /// yet, because copy() could not write them.
  void find_unwritable() {
    const ReadOnlyMemory read_only;
    for (const Move& move : moves_) {
      if (!read_only.holds(move.target)) continue;
      const at::Tensor values = read(move).to(move.target.scalar_type());
      const std::string problem = read_only.problem(move.target, values);
      if (!problem.empty()) problems_.push_back(absl::StrCat("'", move.name, "' ", problem));
    }
  }

  const SafetensorsOptions& options_;
  std::map<std::string, Target> targets_;
  size_t parameters_ = 0;
  std::vector<TensorFile> files_;
  std::vector<Move> moves_;
  std::set<std::string> placed_;
  std::map<const void*, size_t> move_of_;  // by tensor: index in moves_
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
  loading.copy();
  return loading.result();
}

LoadedSafetensors load_safetensors(torch::nn::Module& model, Engine& engine,
                                   const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options) {
  PosixFileSystem files;
  Loading loading(model, options);
  std::set<const void*> of_engine;
  for (const Parameter& parameter : engine.parameters()) {
    of_engine.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  // If one rank has a problem, all ranks must throw before anything is changed.
  std::string problem;
  Loading::Values others;
  std::vector<std::string> lines;
  try {
    problem =
        loading.has_any(of_engine)
            ? loading.plan(files, paths)
            : "load_safetensors: got a model without a parameter of the engine's, expected the "
              "engine's model; nothing was changed";
    if (problem.empty()) others = loading.read_all_but(of_engine);
    if (problem.empty()) lines = loading.lines();
  } catch (...) {  // options.rename, a function of the program, may throw anything
    problem = absl::StrCat("load_safetensors: nothing was changed: ", present_error_text());
  }
  refuse_on_all_ranks(engine.group(), problem, "safetensors");
  require_equal(engine.group(), lines, "load_safetensors");

  FileSource values = loading.source(engine.parameters());
  ModelSource source(engine.parameters(), dtypes_of(engine), values, ModelSource::Missing::kStays);
  engine.read_state(source);
  const at::NoGradGuard no_grad;
  const ReadOnlyMemory read_only;
  for (auto& [tensor, value] : others) {
    // plan() has checked that read-only tensors have the new values already.
    if (!read_only.holds(tensor)) tensor.copy_(value);
  }
  return loading.result();
}

}  // namespace tessera
