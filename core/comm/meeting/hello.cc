#include "tessera/core/comm/meeting/hello.h"

#include <unistd.h>

#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

constexpr int kProtocol = 6;
constexpr size_t kFields = 7;

}  // namespace

Hello Hello::of_this_process(int rank, int world_size, const std::string& device,
                             const std::string& build) {
  return {.rank = rank,
          .world_size = world_size,
          .pid = ::getpid(),
          .host = machine_id(),
          .host_name = machine_name(),
          .build = absl::StrCat("protocol ", kProtocol, ", ", build),
          .device = device};
}

std::string Hello::to_text() const {
  return absl::StrCat(rank, "\n", world_size, "\n", pid, "\n", host, "\n", host_name, "\n", build,
                      "\n", device);
}

std::optional<Hello> Hello::from_text(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  Hello hello;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[0], &hello.rank) ||
      !absl::SimpleAtoi(fields[1], &hello.world_size) || !absl::SimpleAtoi(fields[2], &hello.pid) ||
      hello.world_size > kMaxRanks || hello.rank < 0 || hello.rank >= hello.world_size ||
      hello.pid <= 0) {
    return std::nullopt;
  }
  hello.host = fields[3];
  hello.host_name = fields[4];
  hello.build = fields[5];
  hello.device = fields[6];
  return hello;
}

std::string Hello::name() const {
  return absl::StrCat("rank ", rank, " (pid ", pid,
                      host == machine_id() ? "" : absl::StrCat(" on ", host_name), ")");
}

std::string Hello::state() const {
  const std::string does = host == machine_id() ? process_activity(pid) : "";
  return absl::StrCat(name(), does.empty() ? "" : ", which ", does);
}

}  // namespace tessera::internal
