#pragma once

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::internal::testing {

/// A directory of mode 0700, deleted with its contents by the destructor.
class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_("/tmp/tessera-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  }
  ~TemporaryDirectory() {
    std::error_code error;
    do {  // repeated because a thread that outlives its test may write meanwhile
      std::filesystem::remove_all(path_, error);
    } while (error == std::errc::directory_not_empty);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// Returns a file's content; "" if there is no file.
inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns the names in a directory, in ascending order.
inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::internal::testing
