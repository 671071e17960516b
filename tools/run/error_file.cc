#include "tessera/tools/run/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {
namespace {

constexpr size_t kLongestFile_bytes = 1 << 20;
constexpr size_t kLongestMessage_bytes = 4000;

/// As a terminal may show it: a worker's text may hold anything.
std::string shown(std::string text) {
  text.resize(std::min(text.size(), kLongestMessage_bytes));
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c == 127; }, '?');
  return text;
}

}  // namespace

std::string read_error_file(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  std::string text(kLongestFile_bytes, '\0');
  const ssize_t count = read(file.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* message = &json;
  // torchrun's own writers put an object with the text into "message", others the text.
  for (int depth = 0; depth < 2 && message->is_object(); ++depth) {
    const auto found = message->find("message");
    if (found == message->end()) return "";
    message = &*found;
  }
  return message->is_string() && message != &json ? shown(message->get<std::string>()) : "";
}

std::string write_error_file(const std::string& path, const std::string& message) {
  const nlohmann::json json = {{"message", message}, {"timestamp", time(nullptr)}};
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
  errno = file.is_open() ? ENOSPC : errno;  // that of a short write
  if (file.is_open() &&
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return "";
  }
  return absl::StrCat("cannot write TORCHELASTIC_ERROR_FILE '", path, "': ", strerror(errno));
}

}  // namespace tessera::internal
