#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tessera/core/comm/meeting/connection.h"
#include "tessera/core/comm/meeting/endpoint.h"
#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/comm/meeting/tcp_address.h"

namespace tessera::internal {

/// One rank's search for the place where its job meets: what the searches for each kind of place
/// have in common.
class Search {
 public:
  explicit Search(const EndpointOptions& options);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

 protected:
  using Clock = std::chrono::steady_clock;
  // A host that is there answers in microseconds, and one that is flooded in seconds.
  static constexpr auto kMaxHandshake = std::chrono::seconds(10);

  ~Search() = default;

  const Environment& environment() const { return options_.environment; }
  Credentials credentials() const;
  Deadline end() const { return end_; }
  Deadline soon() const { return std::min(end_, Clock::now() + kMaxHandshake); }

  static void check(const absl::Status& status, const std::string& what);
  /// Throws CommError of this rank.
  [[noreturn]] void fail(const std::string& cause) const;

  /// Remembers the process of this host to name if the search fails.
  void suspect(int pid);
  /// Remembers why not yet; throws what no waiting mends.
  void note(const absl::Status& status);
  /// Waits a little; at the time-out throws an error that says what was found.
  void pause_or_give_up();

  /// Nothing, and a note, if who listens there does not let this rank in.
  std::optional<Endpoint> enter(FileDescriptor socket, const Credentials& credentials,
                                Deadline deadline, const std::string& who = "rank 0");
  Endpoint host(std::unique_ptr<Listener> listener, const Credentials& credentials) const;

  /// The address in MASTER_*. Rank 0 must have one; the others may come before the network knows
  /// the name.
  TcpAddress resolve(bool must_be);
  void check_token(const TcpAddress& address) const;

  const EndpointOptions& options_;
  std::string variables_;    // that lead to rank 0; "" at a path, where any rank hosts
  std::optional<int> host_;  // the rank that hosts, as far as it is known
  int host_pid_ = 0;         // its process, if it is one of this host
  std::string problem_ = "nobody came";

 private:
  Endpoint at_store(c10::intrusive_ptr<JobStore> store) const;

  const Clock::time_point start_;
  const Deadline end_;
  bool has_warned_ = false;
  std::string refusal_;  // of who turned this rank away
  std::chrono::milliseconds pause_{1};
};

/// Where ranks meet at a Unix socket with this path.
Endpoint find_at_path(const EndpointOptions& options, const std::string& path);
/// At the environment's MASTER_ADDR and MASTER_PORT, which are store_url's if there is one.
Endpoint find_at_address(const EndpointOptions& options);
/// Where one rank of this host listens at an abstract socket of that name, which it has told the
/// others; `listener`: that rank's, null elsewhere.
Endpoint find_at_name(const EndpointOptions& options, const std::string& name,
                      std::unique_ptr<Listener> listener);
/// By torchrun's store at MASTER_ADDR and MASTER_PORT.
Endpoint find_at_agent(const EndpointOptions& options);

}  // namespace tessera::internal
