#include "tessera/core/comm/meeting/credentials.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"
#include "tessera/core/process/process_variables.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

constexpr const char* kMeetingProtocol = "tessera meeting 1";
constexpr size_t kMaxNonce = 64;
constexpr size_t kMaxName = 256;

bool is_kind(const Message& message, ConnectionHandshake kind, size_t fields) {
  return message.kind == static_cast<uint8_t>(kind) && message.fields.size() == fields;
}

}  // namespace

MacKey Credentials::connection_key(std::string_view member_nonce,
                                   std::string_view host_nonce) const {
  return MacKey::of_token(token).derive(
      {kMeetingProtocol, member_nonce, host_nonce, run_id, attempt});
}

HostProcess HostProcess::of_this_process(int rank) {
  return {.rank = rank, .pid = ::getpid(), .machine = machine_id(), .host = machine_name()};
}

std::string HostProcess::text() const {
  return absl::StrCat("rank ", rank, " (pid ", pid, machine == machine_id() ? "" : " on ",
                      machine == machine_id() ? "" : host, ")");
}

std::string HostProcess::activity() const {
  if (machine != machine_id()) return "";
  const auto status = process_status(pid);
  if (!status || status->describe().empty()) return "";
  return absl::StrCat("and ", status->describe());
}

bool HostProcess::has_ended() const {
  if (machine != machine_id()) return false;
  if (const auto status = process_status(pid)) return status->has_ended();
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

std::optional<int> rank_of_process(int pid) {
  const auto variables = variables_of_process(pid);
  if (!variables) return std::nullopt;
  const auto environment = read_environment(*variables, {.identity = true, .store = false});
  if (!environment.ok() || environment->world_size == 1) return std::nullopt;
  return environment->rank;
}

Message nonce_message(ConnectionHandshake kind, const std::string& nonce) {
  return {.kind = static_cast<uint8_t>(kind), .fields = {kMeetingProtocol, nonce}};
}

std::optional<std::string> parse_nonce(const Message& message, ConnectionHandshake kind) {
  if (!is_kind(message, kind, 2) || message.fields[0] != kMeetingProtocol) return std::nullopt;
  if (message.fields[1].empty() || message.fields[1].size() > kMaxNonce) return std::nullopt;
  return message.fields[1];
}

Message member_message() {
  return {.kind = static_cast<uint8_t>(ConnectionHandshake::kMember), .fields = {}};
}

bool is_member_message(const Message& message) {
  return is_kind(message, ConnectionHandshake::kMember, 0);
}

Message host_message(const HostProcess& host) {
  return {.kind = static_cast<uint8_t>(ConnectionHandshake::kHost),
          .fields = {absl::StrCat(host.rank), absl::StrCat(host.pid), host.machine, host.host}};
}

std::optional<HostProcess> parse_host(const Message& message) {
  HostProcess host;
  if (!is_kind(message, ConnectionHandshake::kHost, 4) ||
      !absl::SimpleAtoi(message.fields[0], &host.rank) ||
      !absl::SimpleAtoi(message.fields[1], &host.pid) || message.fields[2].size() > kMaxName ||
      message.fields[3].size() > kMaxName) {
    return std::nullopt;
  }
  host.machine = message.fields[2];
  host.host = message.fields[3];
  return host;
}

}  // namespace tessera::internal
