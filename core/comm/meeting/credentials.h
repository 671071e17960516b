#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/seal.h"

namespace tessera::internal {

/// What a rank has to know, and to show, to be let in where its job meets.
struct Credentials {
  std::string token;    ///< the job's secret; "" for none
  std::string run_id;   ///< of the job, as its launcher calls it
  std::string attempt;  ///< how often the launcher has started it again

  /// The key of a connection whose sides have these nonces.
  Seal connection_key(std::string_view member_nonce, std::string_view host_nonce) const;
};

/// The process that lets the others in, in its own words.
struct HostName {
  int rank = 0;
  int pid = 0;
  std::string machine;  ///< machine_id()
  std::string host;     ///< machine_name()

  /// Local. This process.
  static HostName of_this_process(int rank);

  /// "rank 0 (pid 12)", and on another machine "rank 0 (pid 12 on node7)".
  std::string text() const;
  /// What the process does, as in "and sleeps"; "" if that cannot be seen from here.
  std::string activity() const;
  /// Whether the process is seen to have ended; false of one that cannot be seen from here.
  bool has_ended() const;
};

/// Local. The rank that a launcher made of a process of this host and user, as its environment
/// says: for a process that cannot answer.
std::optional<int> rank_of_process(int pid);

/// The four messages of an entrance, in order: both sides say a nonce, then the member and then the
/// host prove, by a sealed frame, that they know the key.
enum class Entrance : uint8_t { kMemberNonce = 101, kHostNonce = 102, kMember = 103, kHost = 104 };

/// Local. The messages, and what they say if they are what they should be.
Message nonce_message(Entrance kind, const std::string& nonce);
std::optional<std::string> parse_nonce(const Message& message, Entrance kind);
Message member_message();
bool is_member_message(const Message& message);
Message host_message(const HostName& host);
std::optional<HostName> parse_host(const Message& message);

}  // namespace tessera::internal
