#include "tessera/core/comm/meeting/hello.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

constexpr int kProtocol = 5;
constexpr size_t kFields = 10;
constexpr size_t kMaxTextBytes = 4096;

/// Who knows a token can tell that another process knows it, too.
std::string digest(const std::string& job_token, const std::string& nonce) {
  if (job_token.empty()) return "none";
  const MacKey::Bytes mac = MacKey::of_token(job_token).compute({"hello", nonce});
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size()));
}

}  // namespace

Hello Hello::of_this_process(int rank, int world_size, const std::string& job_token,
                             const std::string& device, const std::string& build) {
  Hello hello;
  hello.nonce = MacKey::new_nonce();
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = ::getpid();
  if (const auto status = process_status(hello.pid)) hello.start_time = status->start_time;
  hello.host = machine_id();
  hello.host_name = machine_name();
  hello.build = absl::StrCat("protocol ", kProtocol, ", ", build);
  hello.token_digest = digest(job_token, hello.nonce);
  hello.device = device;
  return hello;
}

std::string Hello::to_text() const {
  return absl::StrCat(nonce, "\n", rank, "\n", world_size, "\n", pid, "\n", start_time, "\n", host,
                      "\n", host_name, "\n", build, "\n", token_digest, "\n", device);
}

std::optional<Hello> Hello::from_text(const std::string& text) {
  if (text.size() > kMaxTextBytes) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  Hello hello;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[1], &hello.rank) ||
      !absl::SimpleAtoi(fields[2], &hello.world_size) || !absl::SimpleAtoi(fields[3], &hello.pid) ||
      !absl::SimpleAtoi(fields[4], &hello.start_time)) {
    return std::nullopt;
  }
  if (hello.world_size > kMaxRanks || hello.rank < 0 || hello.rank >= hello.world_size ||
      hello.pid <= 0) {
    return std::nullopt;
  }
  hello.nonce = fields[0];
  hello.host = fields[5];
  hello.host_name = fields[6];
  hello.build = fields[7];
  hello.token_digest = fields[8];
  hello.device = fields[9];
  return hello;
}

bool Hello::has_token(const std::string& job_token) const {
  return token_digest == digest(job_token, nonce);
}

int Hello::local_pid() const { return host == machine_id() ? pid : 0; }

bool Hello::has_ended() const {
  if (local_pid() == 0) return false;
  if (const auto status = process_status(pid)) {
    return status->start_time != start_time || status->has_ended();
  }
  // No descriptor left to look with is no death.
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

std::string Hello::name() const {
  return absl::StrCat("rank ", rank, " (pid ", pid,
                      local_pid() != 0 ? "" : absl::StrCat(" on ", host_name), ")");
}

std::string Hello::state() const {
  if (local_pid() == 0) return name();
  const auto status = process_status(pid);
  const std::string does = has_ended() ? "has ended" : status ? status->describe() : "";
  return absl::StrCat(name(), does.empty() ? "" : ", which ", does);
}

}  // namespace tessera::internal
