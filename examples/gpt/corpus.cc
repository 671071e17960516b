#include "tessera/examples/gpt/corpus.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/examples/gpt/model.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock_bytes = int64_t{64} << 10;
constexpr int64_t kHeldOutEvery = 10;
constexpr size_t kListed = 10;  // unreadable files that a message names

/// Appends at most `limit_bytes` of the file to `text`. Returns 0, or errno.
int append_file(const std::string& path, int64_t limit_bytes, std::string& text) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const size_t end = text.size() + static_cast<size_t>(limit_bytes);
  int error = 0;
  std::vector<char> chunk(size_t{1} << 18);
  while (text.size() < end) {
    const ssize_t got = ::read(file, chunk.data(), std::min(chunk.size(), end - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    text.append(chunk.data(), static_cast<size_t>(got));
  }
  ::close(file);
  return error;
}

absl::StatusOr<std::vector<std::string>> files_below(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(directory, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    std::error_code ignored;  // a dangling link is not a regular file
    if (walk->is_regular_file(ignored)) files.push_back(walk->path().string());
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("[gpt] --data: got '", directory,
                                               "', which cannot be listed (", error.message(),
                                               "), expected a readable directory"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Corpus::Corpus(at::Tensor training, at::Tensor held_out, int64_t files)
    : training_(std::move(training)), held_out_(std::move(held_out)), files_(files) {}

absl::StatusOr<Corpus> Corpus::read(const std::string& path, int64_t limit_bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(
        absl::StrCat("[gpt] --data: got '", path, "' (",
                     error ? error.message() : std::string("no such file or directory"),
                     "), expected a text file or a directory of text files; check the path"));
  }
  const bool is_directory = fs::is_directory(status);
  if (!is_directory && !fs::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[gpt] --data: got '", path,
                     "', which is neither a file nor a directory; give one of the two"));
  }
  std::vector<std::string> paths = {path};
  if (is_directory) {
    absl::StatusOr<std::vector<std::string>> below = files_below(path);
    if (!below.ok()) return below.status();
    paths = *std::move(below);
  }

  std::string text;
  int64_t files = 0;
  std::vector<std::string> problems;
  int64_t unlisted = 0;
  for (const std::string& file : paths) {
    const size_t begin = text.size();
    const int64_t left_bytes = limit_bytes - static_cast<int64_t>(begin);
    if (left_bytes <= 0) break;
    if (const int failure = append_file(file, left_bytes, text); failure != 0) {
      if (problems.size() == kListed) {
        ++unlisted;
      } else {
        problems.push_back(absl::StrCat("  ", file, ": ", std::strerror(failure)));
      }
    }
    if (is_directory && text.find('\0', begin) != std::string::npos) text.resize(begin);
    if (text.size() > begin) ++files;
  }
  if (!problems.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "[gpt] --data: got unreadable files, expected readable ones; change their permissions or "
        "give another path:\n",
        absl::StrJoin(problems, "\n"),
        unlisted > 0 ? absl::StrCat("\n  and ", unlisted, " more") : ""));
  }
  if (text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[gpt] --data: got '", path, "' without any text in it; give another path"));
  }
  Corpus corpus = from_text(text);
  corpus.files_ = files;
  return corpus;
}

Corpus Corpus::from_text(const std::string& text) {
  const auto total = static_cast<int64_t>(text.size());
  const int64_t block =
      std::max<int64_t>(1, std::min(kBlock_bytes, (total + kHeldOutEvery - 1) / kHeldOutEvery));
  std::string training, held_out;
  for (int64_t begin = 0; begin < total; begin += block) {
    const bool is_held_out = begin / block % kHeldOutEvery == kHeldOutEvery - 1;
    (is_held_out ? held_out : training)
        .append(text, static_cast<size_t>(begin), static_cast<size_t>(block));
  }
  const auto tensor = [](const std::string& bytes) {
    at::Tensor result = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    if (!bytes.empty()) std::memcpy(result.mutable_data_ptr(), bytes.data(), bytes.size());
    return result;
  };
  return Corpus(tensor(training), tensor(held_out), 1);
}

absl::Status Corpus::check_size(int64_t context, int64_t sequences) const {
  const int64_t training_bytes = sequences * context + 1;
  const int64_t held_out_bytes = context + 1;
  if (training_.numel() >= training_bytes && held_out_.numel() >= held_out_bytes) {
    return absl::OkStatus();
  }
  const int64_t needed_bytes = std::max(held_out_bytes * kHeldOutEvery,
                                        training_bytes * kHeldOutEvery / (kHeldOutEvery - 1));
  return absl::InvalidArgumentError(absl::StrCat(
      "[gpt] --data: got ", size_bytes(), " bytes of text, expected about ", needed_bytes,
      " or more for one step of ", sequences, " sequences of context ", context,
      " and as many held out as the tenth of it gives; give more text (raise --data_bytes if it "
      "cuts) or lower --context, --batch or the number of ranks"));
}

double Corpus::unigram_entropy() const {
  const at::Tensor count =
      at::bincount(at::cat({training_, held_out_}), {}, kVocabulary).to(at::kDouble);
  const at::Tensor share = count / count.sum();
  return -at::xlogy(share, share).sum().item<double>();
}

}  // namespace gpt
