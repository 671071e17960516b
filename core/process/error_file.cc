#include "tessera/core/process/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {
namespace {

constexpr size_t kLongestFile_bytes = 1 << 20;
constexpr size_t kLongestMessage_bytes = 4000;

/// Returns `text`, cut off at kLongestMessage_bytes, with '?' for control characters other than
/// newlines and tabs: a rank's text may contain anything, and is printed on terminals.
std::string shown(std::string text) {
  text.resize(std::min(text.size(), kLongestMessage_bytes));
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c == 127; }, '?');
  return text;
}

/// Writes `text` to the file at `path`, opened with `flags`; returns errno, or 0.
int write_file(const std::string& path, int flags, const std::string& text) {
  constexpr int kAlways = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const FileDescriptor file(open(path.c_str(), kAlways | flags, 0600));
  if (!file.is_open()) return errno;
  const ssize_t count = write(file.get(), text.data(), text.size());
  if (count == static_cast<ssize_t>(text.size())) return 0;
  return count < 0 ? errno : ENOSPC;
}

/// Writes a file that does not exist yet; returns errno, or 0.
int write_new_file(const std::string& path, const std::string& text) {
  const std::string part = absl::StrCat(path, ".", getpid());
  unlink(part.c_str());  // another process with this pid may have been killed here
  int error = write_file(part, O_EXCL, text);
  if (error == 0 && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(part.c_str());
  return error;
}

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string shown_message(const std::string& message) {
  return shown(nlohmann::json::parse(json_text(message)).get<std::string>());
}

std::string read_error_file(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  std::string text(kLongestFile_bytes, '\0');
  const ssize_t count = read(file.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* message = &json;
  // torchrun's own writers put an object that holds the text into "message"; other writers put the
  // text itself there.
  for (int depth = 0; depth < 2 && message->is_object(); ++depth) {
    const auto found = message->find("message");
    if (found == message->end()) return "";
    message = &*found;
  }
  return message->is_string() && message != &json ? shown(message->get<std::string>()) : "";
}

std::string write_error_file(const std::string& path, const std::string& message) {
  // "py_callstack" is left out, because torchrun would show it in place of the text.
  const nlohmann::json json = {
      {"message",
       {{"message", message}, {"extraInfo", {{"timestamp", absl::StrCat(time(nullptr))}}}}}};
  const std::string text = json_text(json) + "\n";
  struct stat status;
  const bool is_new = lstat(path.c_str(), &status) != 0;
  const int error = is_new ? write_new_file(path, text) : write_file(path, O_TRUNC, text);
  if (error == 0) return "";
  return absl::StrCat("cannot write TORCHELASTIC_ERROR_FILE '", path, "': ", strerror(error));
}

}  // namespace tessera::internal
