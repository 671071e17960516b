#include "tessera/core/process/machine.h"

#include <unistd.h>

#include <fstream>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char target[256];
  const ssize_t length = ::readlink(path, target, sizeof(target));
  return length > 0 ? std::string(target, length) : std::string();
}

}  // namespace

std::string machine_id() {
  return absl::StrCat(first_line("/proc/sys/kernel/random/boot_id"), " ",
                      link_target("/proc/self/ns/pid"));
}

std::string host_id() {
  return absl::StrCat(machine_id(), " ", link_target("/proc/self/ns/net"), " ",
                      link_target("/proc/self/ns/uts"));
}

std::string machine_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace tessera::internal
