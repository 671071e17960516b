#include "tessera/checkpoint/engine/own_file_system.h"

#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {
namespace {

void name_error(absl::Status& status, const char* operation, const std::string& path) {
  if (status.ok() || !status.message().empty()) return;
  status = {status.code(), absl::StrCat("[checkpoint] cannot ", operation, " '", path,
                                        "': the program's file system says ",
                                        absl::StatusCodeToString(status.code()), " and no more")};
}
template <typename Value>
void name_error(absl::StatusOr<Value>& value, const char* operation, const std::string& path) {
  if (value.ok()) return;
  absl::Status status = value.status();
  name_error(status, operation, path);
  value = std::move(status);
}

/// Returns what `act` returns; turns an exception into an error.
template <typename Act>
auto guarded(const char* operation, const std::string& path, Act&& act) -> decltype(act()) {
  try {
    auto result = act();
    name_error(result, operation, path);
    return result;
  } catch (...) {
    return absl::InternalError(
        absl::StrCat("[checkpoint] cannot ", operation, " '", path,
                     "': the program's file system has thrown: ", present_error_text()));
  }
}

class OwnWritableFile final : public WritableFile {
 public:
  OwnWritableFile(std::unique_ptr<WritableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  absl::Status write_all(std::string_view bytes) override {
    return guarded("write", path_, [&] { return file_->write_all(bytes); });
  }
  absl::Status sync() override {
    return guarded("sync", path_, [&] { return file_->sync(); });
  }
  absl::Status close() override {
    return guarded("close", path_, [&] { return file_->close(); });
  }

 private:
  const std::unique_ptr<WritableFile> file_;
  const std::string path_;
};

class OwnReadableFile final : public ReadableFile {
 public:
  OwnReadableFile(std::unique_ptr<ReadableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  absl::Status read(int64_t offset, absl::Span<char> to) override {
    return guarded("read", path_, [&] { return file_->read(offset, to); });
  }

 private:
  const std::unique_ptr<ReadableFile> file_;
  const std::string path_;
};

class OwnFileSystem final : public FileSystem {
 public:
  explicit OwnFileSystem(std::shared_ptr<FileSystem> files) : files_(std::move(files)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    auto file = call("create", path, [&](const auto& at) { return files_->create(at); });
    if (!file.ok()) return file.status();
    return std::make_unique<OwnWritableFile>(*std::move(file), path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    auto file = call("open", path, [&](const auto& at) { return files_->open(at); });
    if (!file.ok()) return file.status();
    return std::make_unique<OwnReadableFile>(*std::move(file), path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    auto names = call("list", path, [&](const auto& at) { return files_->list(at); });
    if (names.ok()) std::erase(*names, "");
    return names;
  }
  absl::StatusOr<FileEntry> entry(const std::string& path) override {
    return call("look at", path, [&](const auto& at) { return files_->entry(at); });
  }
  bool can_rename() const override { return files_->can_rename(); }
  absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                         bool alone) override {
    return call("lock", path, [&](const auto& at) { return files_->lock_content(at, alone); });
  }
  absl::Status remove_file(const std::string& path) override {
    return call("remove", path, [&](const auto& at) { return files_->remove_file(at); });
  }
  absl::Status copy_file(const std::string& from, const std::string& to) override {
    return call("copy", from, [&](const auto& at) { return files_->copy_file(at, to); });
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return call("rename", from, [&](const auto& at) { return files_->rename(at, to); });
  }
  absl::Status make_directory(const std::string& path) override {
    return call("make", path, [&](const auto& at) { return files_->make_directory(at); });
  }
  absl::Status sync_directory(const std::string& path) override {
    return call("sync", path, [&](const auto& at) { return files_->sync_directory(at); });
  }
  absl::Status remove_directory(const std::string& path) override {
    return call("remove", path, [&](const auto& at) { return files_->remove_directory(at); });
  }
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                 const std::string& holder) override {
    return call("lock", path, [&](const auto& at) { return files_->lock(at, holder); });
  }

 private:
  template <typename Act>
  auto call(const char* operation, std::string path, Act&& act) -> decltype(act(path)) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return guarded(operation, path, [&] { return act(path); });
  }

  const std::shared_ptr<FileSystem> files_;
};

}  // namespace

std::shared_ptr<FileSystem> as_called(std::shared_ptr<FileSystem> files) {
  return std::make_shared<OwnFileSystem>(std::move(files));
}

}  // namespace tessera::internal
