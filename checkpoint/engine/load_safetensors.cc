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

#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/checkpoint/format/json.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

namespace {

absl::Status problem_in(const std::string& path, const absl::Status& status) {
  return {status.code(), absl::StrCat("'", path, "': ", status.message())};
}

/// `bytes` bytes of an open file, from `offset` on.
absl::StatusOr<std::string> bytes_at(ReadableFile& file, int64_t offset, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  if (absl::Status status = file.read(offset, absl::MakeSpan(text)); !status.ok()) return status;
  return text;
}

/// A safetensors file that is open.
class TensorFile {
 public:
  static absl::StatusOr<TensorFile> open(FileSystem& files, const std::string& path) {
    TensorFile opened;
    opened.path_ = path;
    const auto entry = files.entry(path);
    if (!entry.ok()) return entry.status();
    auto file = files.open(path);
    if (!file.ok()) return file.status();
    opened.file_ = *std::move(file);
    absl::Status status = opened.read_header(entry->bytes);
    if (!status.ok()) return problem_in(path, status);
    return opened;
  }

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }

  at::Tensor read(const SafetensorsTensor& tensor) const {
    at::Tensor values = at::empty(tensor.shape, tensor.dtype);
    if (values.numel() == 0) return values;
    const absl::Status status =
        file_->read(data_begin_ + tensor.begin,
                    absl::MakeSpan(static_cast<char*>(values.mutable_data_ptr()), values.nbytes()));
    TORCH_CHECK(status.ok(), "[safetensors] '", path_, "': ", std::string(status.message()));
    return values;
  }

 private:
  absl::Status read_header(int64_t file_bytes) {
    const auto begin =
        bytes_at(*file_, 0, std::min<int64_t>(file_bytes, SafetensorsHeader::kLengthBytes));
    if (!begin.ok()) return begin.status();
    const auto length = SafetensorsHeader::json_bytes(*begin, file_bytes);
    if (!length.ok()) return length.status();
    data_begin_ = SafetensorsHeader::kLengthBytes + *length;
    const auto json = bytes_at(*file_, SafetensorsHeader::kLengthBytes, *length);
    if (!json.ok()) return json.status();
    auto header = SafetensorsHeader::from_json(*json, file_bytes - data_begin_);
    if (!header.ok()) return header.status();
    header_ = *std::move(header);
    return absl::OkStatus();
  }

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  int64_t data_begin_ = 0;
};

/// The files that an index names ("weight_map": a file for each tensor), in the index's directory.
absl::StatusOr<std::vector<std::string>> files_of_index(FileSystem& files,
                                                        const std::string& path) {
  const auto entry = files.entry(path);
  if (!entry.ok()) return entry.status();
  const auto file = files.open(path);
  if (!file.ok()) return file.status();
  constexpr int64_t kMaxBytes = 64 << 20;
  if (entry->bytes > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("got an index of ", entry->bytes, " bytes, expected at most ", kMaxBytes));
  }
  const auto text = bytes_at(**file, 0, entry->bytes);
  if (!text.ok()) return text.status();
  const auto json = parse_json(*text);
  if (!json.ok()) return json.status();
  const auto map = json->is_object() ? json->find("weight_map") : json->end();
  if (!json->is_object() || map == json->end() || !map->is_object()) {
    return absl::InvalidArgumentError("got no object 'weight_map', expected an index of files");
  }
  std::set<std::string> names;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("got ", describe(name), " for '",
                                                     printable(tensor),
                                                     "', expected the name of a file beside it"));
    }
    names.insert(name.get<std::string>());
  }
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(join_path(parent_path(path), name));
  return paths;
}

/// Which tensor of which file goes where; made before anything is changed.
class Loading {
 public:
  Loading(const torch::nn::Module& model, const SafetensorsOptions& options) : options_(options) {
    for (const auto& parameter : model.named_parameters()) {
      if (parameter.value().defined()) targets_[parameter.key()] = {parameter.value(), false};
    }
    for (const auto& buffer : model.named_buffers()) {
      if (buffer.value().defined()) targets_[buffer.key()] = {buffer.value(), true};
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

  /// Copies the parameters, or the buffers.
  void copy(bool buffers) const {
    const at::NoGradGuard no_grad;
    for (const Move& move : moves_) {
      if (move.target.is_buffer != buffers) continue;
      at::Tensor to = move.target.tensor;
      to.copy_(files_[move.file].read(*move.from));
    }
  }

  const LoadedSafetensors& result() const { return result_; }

 private:
  struct Target {
    at::Tensor tensor;
    bool is_buffer = false;
  };
  struct Move {
    Target target;
    size_t file;
    const SafetensorsTensor* from;
  };

  void open(FileSystem& files, std::vector<std::string> paths) {
    const auto add = [&](const absl::Status& status) { problems_.emplace_back(status.message()); };
    if (paths.size() == 1 && paths[0].ends_with(".json")) {
      auto indexed = files_of_index(files, paths[0]);
      if (!indexed.ok()) return add(problem_in(paths[0], indexed.status()));
      paths = *std::move(indexed);
    }
    if (paths.empty()) problems_.emplace_back("got no file, expected one or more");
    for (const std::string& path : paths) {
      auto file = TensorFile::open(files, path);
      if (!file.ok()) {
        add(file.status());
      } else {
        files_.push_back(*std::move(file));
      }
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
    const Target& target = found->second;
    if (target.tensor.sizes() != at::IntArrayRef(tensor.shape)) {
      problems_.push_back(absl::StrCat("'", printable(name), "': got [",
                                       absl::StrJoin(tensor.shape, ", "), "], expected [",
                                       absl::StrJoin(target.tensor.sizes(), ", "), "]"));
    }
    has_values_.insert(target.tensor.unsafeGetTensorImpl());
    moves_.push_back({target, file, &tensor});
  }

  void find_missing() {
    std::set<const void*> seen;
    for (const auto& [name, target] : targets_) {
      const void* const tensor = target.tensor.unsafeGetTensorImpl();
      if (has_values_.count(tensor) > 0 || !seen.insert(tensor).second) continue;
      result_.missing.push_back(name);
      if (!options_.allow_missing) problems_.push_back(absl::StrCat("'", name, "': missing"));
    }
  }

  const SafetensorsOptions& options_;
  std::map<std::string, Target> targets_;
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
  loading.copy(/*buffers=*/false);
  loading.copy(/*buffers=*/true);
  return loading.result();
}

LoadedSafetensors load_safetensors(torch::nn::Module& model, Engine& engine,
                                   const std::vector<std::string>& paths,
                                   const SafetensorsOptions& options) {
  PosixFileSystem files;
  Loading loading(model, options);
  refuse_on_all_ranks(engine.group(), loading.plan(files, paths), "safetensors");
  engine.modify_parameters(0, [&] {
    if (engine.group().rank() == 0) loading.copy(/*buffers=*/false);
  });
  loading.copy(/*buffers=*/true);
  return loading.result();
}

}  // namespace tessera
