#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// How a process introduces itself to its job. Travels through the store as text.
struct Hello {
  std::string nonce;  ///< this call of init_process_group and no other
  int rank = 0;
  int world_size = 1;
  int pid = 0;
  uint64_t start_time = 0;  ///< of the process, in ticks since boot: a pid may be used again
  std::string host;       ///< boot id and PID namespace: equal where processes can share memory and
                          ///< watch each other
  std::string host_name;  ///< for messages
  std::string build;      ///< protocol and sizes of what is shared
  std::string token_digest;  ///< of the job token and the nonce
  std::string device;        ///< the kind: "cpu" or "cuda"

  /// This process, with a fresh nonce.
  static Hello of_this_process(int rank, int world_size, const std::string& job_token,
                               const std::string& device);

  /// 128 random bits, hexadecimal.
  static std::string new_nonce();

  std::string to_text() const;
  static std::optional<Hello> from_text(const std::string& text);

  /// Whether it was made with this job token.
  bool has_token(const std::string& job_token) const;
  /// Whether its process still runs. Only meaningful on the same host.
  bool is_alive() const;
};

}  // namespace tessera
