#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::internal {

/// How a process introduces itself to its job. Travels as text.
struct Hello {
  static constexpr int kMaxRanks = 65536;

  std::string nonce;  ///< this call of init_process_group and no other
  int rank = 0;
  int world_size = 1;
  int pid = 0;
  uint64_t start_time = 0;   ///< of the process, in ticks since boot: a pid may be used again
  std::string host;          ///< machine_id()
  std::string host_name;     ///< machine_name()
  std::string build;         ///< protocol and sizes of what is shared
  std::string token_digest;  ///< of the job token and the nonce
  std::string device;        ///< the kind: "cpu" or "cuda"

  /// This process, with a fresh nonce.
  static Hello of_this_process(int rank, int world_size, const std::string& job_token,
                               const std::string& device);

  std::string to_text() const;
  /// Nothing unless every field is what it can be: 0 <= rank < world_size <= kMaxRanks, a positive
  /// pid, texts of bounded length.
  static std::optional<Hello> from_text(const std::string& text);

  /// Whether it was made with this job token.
  bool has_token(const std::string& job_token) const;
  /// Whether its process still runs. Only meaningful on the same host.
  bool is_alive() const;
};

}  // namespace tessera::internal
