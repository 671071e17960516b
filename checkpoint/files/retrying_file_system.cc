#include "tessera/checkpoint/files/retrying_file_system.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status status_of(const absl::Status& status) { return status; }
template <typename Value>
absl::Status status_of(const absl::StatusOr<Value>& value) {
  return value.status();
}

/// Repeats `call` while it returns a transient error (is_transient()) and `patience` has not
/// elapsed.
template <typename Call>
auto persist(std::chrono::milliseconds patience, Call call) -> decltype(call()) {
  auto result = call();
  if (!is_transient(status_of(result))) return result;
  std::fprintf(stderr, "%s; trying again for %lld s\n",
               std::string(status_of(result).message()).c_str(),
               static_cast<long long>(patience.count() / 1000));
  const auto deadline = Clock::now() + patience;
  auto pause = std::chrono::milliseconds(10);
  while (is_transient(status_of(result)) && Clock::now() < deadline) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
    result = call();
  }
  return result;
}

class RetryingFile final : public ReadableFile {
 public:
  RetryingFile(ReadableFileSystem& files, std::string path, std::unique_ptr<ReadableFile> file,
               std::chrono::milliseconds patience)
      : files_(files), path_(std::move(path)), file_(std::move(file)), patience_(patience) {}

  absl::Status read(int64_t offset, absl::Span<char> to) override {
    bool is_first = true;
    return persist(patience_, [&] {
      // A descriptor that a server has forgotten (ESTALE) stays useless, so open the file again.
      if (!std::exchange(is_first, false)) {
        auto again = files_.open(path_);
        if (!again.ok()) return again.status();
        file_ = *std::move(again);
      }
      return file_->read(offset, to);
    });
  }

 private:
  ReadableFileSystem& files_;
  const std::string path_;
  std::unique_ptr<ReadableFile> file_;
  const std::chrono::milliseconds patience_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadableFile>> RetryingFileSystem::open(const std::string& path) {
  auto file = persist(patience_, [&] { return files_.open(path); });
  if (!file.ok()) return file.status();
  return std::make_unique<RetryingFile>(files_, path, *std::move(file), patience_);
}

absl::StatusOr<std::vector<std::string>> RetryingFileSystem::list(const std::string& path) {
  return persist(patience_, [&] { return files_.list(path); });
}

absl::StatusOr<FileEntry> RetryingFileSystem::entry(const std::string& path) {
  return persist(patience_, [&] { return files_.entry(path); });
}

absl::StatusOr<std::unique_ptr<FileLock>> RetryingFileSystem::lock_content(const std::string& path,
                                                                           bool alone) {
  return files_.lock_content(path, alone);  // never repeated, because readers can do without a lock
}

}  // namespace tessera::internal
