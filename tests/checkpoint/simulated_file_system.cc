#include "tessera/tests/checkpoint/simulated_file_system.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>
#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/tests/checkpoint/simulated_node.h"

namespace tessera::internal::testing {

class SimulatedWritableFile : public WritableFile {
 public:
  SimulatedWritableFile(SimulatedFileSystem& files, SimulatedNodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  absl::Status write_all(std::string_view bytes) override {
    bool half = false;
    absl::Status status = files_.begin("write", path_, &half);
    if (status.ok()) {
      const int64_t space = files_.capacity_ - files_.used_bytes();
      if (space < static_cast<int64_t>(bytes.size())) {
        status = file_error(ENOSPC, "write", path_);
        bytes = bytes.substr(0, static_cast<size_t>(std::max<int64_t>(space, 0)));
      }
      node_->bytes.append(bytes);
    } else if (half) {
      node_->bytes.append(bytes.substr(0, bytes.size() / 2));
    }
    return status;
  }
  absl::Status sync() override {
    absl::Status status = files_.begin("fsync", path_);
    if (!status.ok()) node_->is_broken = true;
    if (!node_->is_broken) node_->durable_bytes = node_->bytes;
    return status;
  }
  absl::Status close() override { return files_.begin("close", path_); }

 private:
  SimulatedFileSystem& files_;
  const SimulatedNodePointer node_;
  const std::string path_;
};

class SimulatedReadableFile : public ReadableFile {
 public:
  SimulatedReadableFile(SimulatedFileSystem& files, SimulatedNodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  absl::Status read(int64_t offset, absl::Span<char> to) override {
    if (absl::Status status = files_.begin("read", path_); !status.ok()) return status;
    const auto begin = static_cast<size_t>(offset);
    if (begin > node_->bytes.size() || node_->bytes.size() - begin < to.size()) {
      return absl::OutOfRangeError(absl::StrCat("[checkpoint] cannot read '", path_, "': it ends"));
    }
    std::copy_n(node_->bytes.data() + begin, to.size(), to.data());
    return absl::OkStatus();
  }

 private:
  SimulatedFileSystem& files_;
  const SimulatedNodePointer node_;
  const std::string path_;
};

namespace {

/// Releases a lock.
class SimulatedLock : public FileLock {
 public:
  explicit SimulatedLock(std::function<void()> unlock) : unlock_(std::move(unlock)) {}
  ~SimulatedLock() override { unlock_(); }

 private:
  const std::function<void()> unlock_;
};

std::string last_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

SimulatedFileSystem::SimulatedFileSystem() : root_(std::make_shared<SimulatedNode>()) {
  root_->kind = FileEntry::Kind::kDirectory;
}
SimulatedFileSystem::~SimulatedFileSystem() = default;

absl::Status SimulatedFileSystem::begin(std::string_view operation, const std::string& path,
                                        bool* half) {
  if (has_crashed_) return file_error(EIO, operation, path);
  const size_t number = operations_.size();
  operations_.push_back(absl::StrCat(std::string(operation), " ", path));
  if (number != failing_operation_) return absl::OkStatus();
  has_failed_ = true;
  has_crashed_ = failure_ == 0;
  if (half != nullptr) *half = true;
  return file_error(failure_ == 0 ? EIO : failure_, operation, path);
}

SimulatedNodePointer SimulatedFileSystem::find(const std::string& path) const {
  SimulatedNodePointer node = root_;
  for (const auto part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto found = node->names.find(std::string(part));
    if (found == node->names.end()) return nullptr;
    node = found->second;
  }
  return node;
}

SimulatedNodePointer SimulatedFileSystem::directory_of(const std::string& path) const {
  SimulatedNodePointer node = find(parent_path(path));
  return node != nullptr && node->kind == FileEntry::Kind::kDirectory ? node : nullptr;
}

int64_t SimulatedFileSystem::used_bytes() const {
  int64_t bytes = 0;
  for (const auto& [path, content] : files_below("/"))
    bytes += static_cast<int64_t>(content.size());
  return bytes;
}

absl::StatusOr<std::unique_ptr<WritableFile>> SimulatedFileSystem::create(const std::string& path) {
  if (absl::Status status = begin("create", path); !status.ok()) return status;
  const SimulatedNodePointer directory = directory_of(path);
  if (directory == nullptr) return file_error(ENOENT, "create", path);
  if (directory->names.contains(last_name(path))) return file_error(EEXIST, "create", path);
  const auto node = std::make_shared<SimulatedNode>();
  directory->change({.removed = "", .added = last_name(path), .node = node});
  return std::make_unique<SimulatedWritableFile>(*this, node, path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> SimulatedFileSystem::open(const std::string& path) {
  if (absl::Status status = begin("open", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "open", path);
  if (node->kind != FileEntry::Kind::kFile) return file_error(ELOOP, "open", path);
  return std::make_unique<SimulatedReadableFile>(*this, node, path);
}

absl::Status SimulatedFileSystem::make_directory(const std::string& path) {
  if (absl::Status status = begin("mkdir", path); !status.ok()) return status;
  const SimulatedNodePointer directory = directory_of(path);
  if (directory == nullptr) return file_error(ENOENT, "mkdir", path);
  if (directory->names.contains(last_name(path))) return file_error(EEXIST, "mkdir", path);
  const auto node = std::make_shared<SimulatedNode>();
  node->kind = FileEntry::Kind::kDirectory;
  directory->change({.removed = "", .added = last_name(path), .node = node});
  return absl::OkStatus();
}

absl::Status SimulatedFileSystem::sync_directory(const std::string& path) {
  const absl::Status status = begin("fsync", path);
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "fsync", path);
  if (!status.ok()) node->is_broken = true;
  if (!node->is_broken) {
    node->durable_names = node->names;
    node->changes.clear();
  }
  return status;
}

absl::Status SimulatedFileSystem::rename(const std::string& from, const std::string& to) {
  if (absl::Status status = begin("rename", to); !status.ok()) return status;
  const SimulatedNodePointer node = find(from), directory = directory_of(from);
  if (node == nullptr) return file_error(ENOENT, "rename", from);
  if (directory != directory_of(to)) throw std::logic_error("renamed into another directory");
  if (directory->names.contains(last_name(to))) return file_error(EEXIST, "rename", to);
  directory->change({.removed = last_name(from), .added = last_name(to), .node = node});
  return absl::OkStatus();
}

absl::Status SimulatedFileSystem::remove_file(const std::string& path) {
  if (absl::Status status = begin("unlink", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "unlink", path);
  if (node->kind == FileEntry::Kind::kDirectory) return file_error(EISDIR, "unlink", path);
  directory_of(path)->change({.removed = last_name(path), .added = "", .node = nullptr});
  return absl::OkStatus();
}

absl::Status SimulatedFileSystem::remove_directory(const std::string& path) {
  if (absl::Status status = begin("rmdir", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "rmdir", path);
  if (node->kind != FileEntry::Kind::kDirectory) return file_error(ENOTDIR, "rmdir", path);
  if (!node->names.empty()) return file_error(ENOTEMPTY, "rmdir", path);
  directory_of(path)->change({.removed = last_name(path), .added = "", .node = nullptr});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SimulatedFileSystem::list(const std::string& path) {
  if (absl::Status status = begin("list", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "list", path);
  if (node->kind != FileEntry::Kind::kDirectory) return file_error(ENOTDIR, "list", path);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

absl::StatusOr<FileEntry> SimulatedFileSystem::entry(const std::string& path) {
  if (absl::Status status = begin("stat", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "stat", path);
  return FileEntry{.kind = node->kind, .bytes = static_cast<int64_t>(node->bytes.size())};
}

absl::StatusOr<std::unique_ptr<FileLock>> SimulatedFileSystem::lock(const std::string& path,
                                                                    const std::string& holder) {
  if (absl::Status status = begin("lock", path); !status.ok()) return status;
  const SimulatedNodePointer directory = directory_of(path);
  if (directory == nullptr) return file_error(ENOENT, "lock", path);
  if (!directory->names.contains(last_name(path))) {
    directory->change(
        {.removed = "", .added = last_name(path), .node = std::make_shared<SimulatedNode>()});
  }
  const SimulatedNodePointer node = find(path);
  if (node->is_locked) return absl::FailedPreconditionError(absl::StrCat("held by ", node->bytes));
  node->is_locked = true;
  node->bytes = holder;
  return std::make_unique<SimulatedLock>([node] { node->is_locked = false; });
}

absl::StatusOr<std::unique_ptr<FileLock>> SimulatedFileSystem::lock_content(const std::string& path,
                                                                            bool alone) {
  if (absl::Status status = begin("lock", path); !status.ok()) return status;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return file_error(ENOENT, "lock", path);
  if (node->is_locked || (alone && node->readers > 0)) {
    return absl::FailedPreconditionError(absl::StrCat("cannot lock '", path, "'"));
  }
  if (alone) {
    node->is_locked = true;
    return std::make_unique<SimulatedLock>([node] { node->is_locked = false; });
  }
  ++node->readers;
  return std::make_unique<SimulatedLock>([node] { --node->readers; });
}

void SimulatedFileSystem::fail_at(size_t n, int error) {
  failing_operation_ = operations_.size() + n;
  failure_ = error;
  has_failed_ = false;
}
void SimulatedFileSystem::crash_at(size_t n) { fail_at(n, 0); }

std::vector<SimulatedNodePointer> SimulatedFileSystem::all_nodes() const {
  std::vector<SimulatedNodePointer> nodes{root_};
  std::set<SimulatedNode*> seen{root_.get()};
  const auto add = [&](const SimulatedNodePointer& node) {
    if (node != nullptr && seen.insert(node.get()).second) nodes.push_back(node);
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const SimulatedNodePointer node = nodes[i];
    for (const auto& [name, child] : node->durable_names) add(child);
    for (const SimulatedChange& change : node->changes) add(change.node);
  }
  return nodes;
}

size_t SimulatedFileSystem::crash_states() const {
  size_t states = 1;
  for (const SimulatedNodePointer& node : all_nodes()) {
    if (__builtin_mul_overflow(states, node->states(), &states)) return SIZE_MAX;
  }
  return states;
}

std::unique_ptr<SimulatedFileSystem> SimulatedFileSystem::with_choices(
    const std::function<size_t(size_t states)>& choose) const {
  auto result = std::make_unique<SimulatedFileSystem>();
  const std::vector<SimulatedNodePointer> nodes = all_nodes();
  std::map<const SimulatedNode*, SimulatedNodePointer> copies{{nullptr, nullptr}};
  for (const SimulatedNodePointer& node : nodes)
    copies[node.get()] = std::make_shared<SimulatedNode>();
  for (const SimulatedNodePointer& node : nodes) {
    const size_t choice = choose(node->states());
    SimulatedNode& copy = *copies.at(node.get());
    copy.kind = node->kind;
    copy.bytes = copy.durable_bytes = node->bytes_in(choice);
    for (const auto& [name, child] : node->durable_names) copy.names[name] = copies.at(child.get());
    for (size_t i = 0; i < node->changes.size(); ++i) {
      const SimulatedChange& change = node->changes[i];
      if ((choice >> std::min<size_t>(i, 19) & 1) == 0) continue;
      copy.apply({change.removed, change.added, copies.at(change.node.get())});
    }
    copy.durable_names = copy.names;
  }
  result->root_ = copies.at(root_.get());
  return result;
}

std::unique_ptr<SimulatedFileSystem> SimulatedFileSystem::after_crash(size_t state) const {
  return with_choices([&state](size_t states) {
    const size_t choice = state % states;
    state /= states;
    return choice;
  });
}

std::unique_ptr<SimulatedFileSystem> SimulatedFileSystem::copy() const {
  return with_choices([](size_t states) { return states - 1; });
}

std::string& SimulatedFileSystem::content(const std::string& path) {
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) throw std::logic_error("no " + path);
  return node->bytes;
}

void SimulatedFileSystem::put_file(const std::string& path, std::string content) {
  const auto node = std::make_shared<SimulatedNode>();
  node->bytes = std::move(content);
  directory_of(path)->change({.removed = "", .added = last_name(path), .node = node});
}

void SimulatedFileSystem::put_link(const std::string& path) {
  put_file(path, "");
  find(path)->kind = FileEntry::Kind::kLink;
}

void SimulatedFileSystem::erase(const std::string& path) {
  directory_of(path)->change({.removed = last_name(path), .added = "", .node = nullptr});
}

void SimulatedFileSystem::swap(const std::string& one, const std::string& other) {
  std::swap(content(one), content(other));
}

std::map<std::string, std::string> SimulatedFileSystem::files_below(const std::string& path) const {
  std::map<std::string, std::string> files;
  const SimulatedNodePointer node = find(path);
  if (node == nullptr) return files;
  for (const auto& [name, child] : node->names) {
    const std::string below = join_path(path, name);
    if (child->kind == FileEntry::Kind::kDirectory) {
      files.merge(files_below(below));
    } else {
      files[below] = child->bytes;
    }
  }
  return files;
}

}  // namespace tessera::internal::testing
