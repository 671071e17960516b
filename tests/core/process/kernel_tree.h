#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {

/// A folder with made-up files of the kernel, under their own paths.
class KernelTree {
 public:
  const std::string& root() const { return directory_.path(); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  /// In group `own` of version 2.
  void show_version_2(const std::string& own) const {
    write("/proc/self/cgroup", "0::" + own + "\n");
  }

 private:
  const TemporaryDirectory directory_;
};

}  // namespace tessera::internal::testing
