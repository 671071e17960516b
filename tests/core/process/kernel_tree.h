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

  /// In group `own` of version 2, the whole hierarchy of which is mounted.
  void show_version_2(const std::string& own) const {
    write("/proc/self/cgroup", "0::" + own + "\n");
    write("/proc/self/mountinfo",
          "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
          "31 27 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }

 private:
  const TemporaryDirectory directory_;
};

}  // namespace tessera::internal::testing
