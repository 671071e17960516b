#include "tessera/core/comm/hello.h"

#include <unistd.h>

#include <fstream>
#include <random>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/util/hash.h>

#include "tessera/core/comm/process_status.h"
#include "tessera/core/comm/shm/world.h"

namespace tessera {
namespace {

constexpr int kProtocol = 3;
constexpr size_t kFields = 10;

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

std::string digest(const std::string& job_token, const std::string& nonce) {
  if (job_token.empty()) return "none";
  const std::string inner = c10::sha1(absl::StrCat(nonce, "\n", job_token)).str();
  return c10::sha1(absl::StrCat(job_token, "\n", inner)).str();
}

}  // namespace

Hello Hello::of_this_process(int rank, int world_size, const std::string& job_token,
                             const std::string& device) {
  Hello hello;
  hello.nonce = new_nonce();
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = ::getpid();
  if (const auto status = process_status(hello.pid)) hello.start_time = status->start_time;
  hello.host = absl::StrCat(first_line("/proc/sys/kernel/random/boot_id"), " ",
                            link_target("/proc/self/ns/pid"));
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  hello.host_name = name;
  hello.build = absl::StrCat("protocol ", kProtocol, ", page of ", shm::ControlPage::bytes(1));
  hello.token_digest = digest(job_token, hello.nonce);
  hello.device = device;
  return hello;
}

std::string Hello::new_nonce() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&text, absl::Hex(random(), absl::kZeroPad8));
  return text;
}

std::string Hello::to_text() const {
  return absl::StrCat(nonce, "\n", rank, "\n", world_size, "\n", pid, "\n", start_time, "\n", host,
                      "\n", host_name, "\n", build, "\n", token_digest, "\n", device);
}

std::optional<Hello> Hello::from_text(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  Hello hello;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[1], &hello.rank) ||
      !absl::SimpleAtoi(fields[2], &hello.world_size) || !absl::SimpleAtoi(fields[3], &hello.pid) ||
      !absl::SimpleAtoi(fields[4], &hello.start_time)) {
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

bool Hello::is_alive() const {
  const auto status = process_status(pid);
  return status && status->start_time == start_time && !status->has_ended();
}

}  // namespace tessera
