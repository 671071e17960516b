#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/meeting/tcp_address.h"

namespace tessera::internal {

/// A place for ranks that meet through a c10d store. Rank 0 writes a note into the store: where it
/// listens and a random secret for this meeting, with a MAC (Note [Message authentication]). All
/// other messages go over connections to rank 0. If the note is left over from an earlier meeting,
/// no process listens where it says, so the store is read again until the note changes. A store
/// call that does not return by its deadline goes on in a thread of its own, which holds a
/// reference to the store.
class StorePlace final : public Place {
 public:
  using Store = c10::intrusive_ptr<c10d::Store>;

  struct Options {
    std::string text;  ///< the place's name in messages
    Credentials credentials;
    bool is_one_host = false;  ///< rank 0 listens at a Unix socket, else at a TCP port
    std::string key;           ///< the key of the note in the store
    /// The host on which torchrun's agent has its store; "" if the program has given the store.
    /// Processes other than the job's ranks can read the agent's store, so knowing the note's
    /// secret proves nothing, and a TCP port that other machines can reach needs the job's token.
    /// With the agent's store, rank 0 listens only at the address from which it reaches the agent;
    /// with a program's store, at every address of its host.
    std::string agent_host = {};
    int agent_port = 0;
  };

  /// `store`: the program's store, or null for the store of torchrun's agent, to which the first
  /// call connects.
  StorePlace(Store store, Options options);

  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) override;
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) override;
  Credentials credentials() const override;
  std::string text() const override { return options_.text; }

 private:
  template <typename Call>
  auto ask_store(Deadline deadline, Call call) -> absl::StatusOr<decltype(call(*Store()))>;
  absl::StatusOr<Store> connect_to_agent(Deadline deadline) const;
  Framing framing(Framing::Side side) const;
  absl::Status check_public(const TcpAddress& address) const;
  absl::StatusOr<std::unique_ptr<Listener>> open_listener();
  absl::Status read_note(Deadline deadline);

  Store store_;
  const Options options_;
  // The contents of the note. On rank 0: of the note that it has written into the store; on another
  // rank: of the note that it has last read there.
  std::string secret_;              // this meeting's secret; whoever reads the store knows it
  int port_ = 0;                    // 0 if rank 0 listens at a socket of its host
  std::vector<std::string> hosts_;  // rank 0's addresses, the best first; or the name of its socket
};

}  // namespace tessera::internal
