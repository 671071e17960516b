#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {

/// What a rank must know, and prove to know, to be admitted to its job's meeting.
struct Credentials {
  std::string token;    ///< the job's secret; "" for none
  std::string run_id;   ///< of the job, as its launcher calls it
  std::string attempt;  ///< how often the launcher has started it again

  /// The key of a connection whose sides have these nonces.
  MacKey connection_key(std::string_view member_nonce, std::string_view host_nonce) const;
};

/// The host process, as it describes itself.
struct HostProcess {
  int rank = 0;
  int pid = 0;
  std::string machine;  ///< machine_id()
  std::string host;     ///< machine_name()

  /// Local. This process.
  static HostProcess of_this_process(int rank);

  /// "rank 0 (pid 12)", and on another machine "rank 0 (pid 12 on node7)".
  std::string text() const;
  /// The state of the process, as in "and sleeps"; "" if it is unknown on this machine.
  std::string activity() const;
  /// Whether the process is known to have ended; false if that is unknown on this machine.
  bool has_ended() const;
};

/// Local. The rank of a process of this host and user, from its environment, for a process that
/// does not answer.
std::optional<int> rank_of_process(int pid);

/// The four messages with which a connection begins, in order: both sides send a nonce, then the
/// member and then the host prove, by a frame with a MAC, that they know the key.
enum class ConnectionHandshake : uint8_t {
  kMemberNonce = 101,
  kHostNonce = 102,
  kMember = 103,
  kHost = 104
};

/// Local. Make these messages, and read them if they are valid.
Message nonce_message(ConnectionHandshake kind, const std::string& nonce);
std::optional<std::string> parse_nonce(const Message& message, ConnectionHandshake kind);
Message member_message();
bool is_member_message(const Message& message);
Message host_message(const HostProcess& host);
std::optional<HostProcess> parse_host(const Message& message);

}  // namespace tessera::internal
