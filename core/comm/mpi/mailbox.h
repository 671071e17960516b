#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/mpi/call.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/link.h"

namespace tessera::internal::mpi {

class Member;

/// Messages between two ranks of a group, matched by sender and tag in the order of the calls.
/// MPI keeps the order of envelopes between two ranks, and the tag of a message's data is in its
/// envelope. A large message is sent when its receiver says that it has it, for that MPI has moved
/// the data does not tell a receiver from one that has failed and drains it. Used by the progress
/// thread alone.
class Mailbox {
 public:
  explicit Mailbox(Member& member) : member_(member) {}

  /// A send or a receive of this rank.
  void start(const std::shared_ptr<Call>& call);
  void take(int rank, const Envelope& envelope);
  /// That rank has received what this one sent it with that tag.
  void note_received(int rank, int data_tag);
  bool advance(Call::Clock::time_point now);
  bool is_busy() const { return !receives_.empty() || !moving_.empty(); }
  void end_all(const std::string& cause);

 private:
  /// A message that has come.
  struct Arrived {
    int from;
    Envelope envelope;
    at::Tensor copy;  // of one to itself
  };
  /// Data that is under way.
  struct Moving {
    std::shared_ptr<Member> member;
    std::shared_ptr<Call> call;
    Collective collective;  // keeps the tensors after the call has failed
    int peer;
    int data_tag;
    std::unique_ptr<Exchange> exchange;
    bool is_received = false;  // of a large one that is sent: its receiver says so
    bool sends() const { return call->signature().op == Op::kSend; }
  };

  void send(const std::shared_ptr<Call>& call);
  void receive(const std::shared_ptr<Call>& call);
  bool fits(const Call& receive, const Arrived& arrived) const;
  void deliver(const std::shared_ptr<Call>& receive, const Arrived& arrived);
  std::shared_ptr<Moving> begin_move(const std::shared_ptr<Call>& call, int peer, int data_tag);
  void finish(Moving& moving);
  void take_own(Arrived arrived);
  /// Whether nothing more comes from that rank, or from any.
  bool is_gone(int from) const;
  std::vector<int> awaited(int from) const;
  void fail_as_left(const Call& call, int peer);
  void time_out(const Call& call);

  Member& member_;
  std::list<Arrived> arrived_;
  std::list<std::shared_ptr<Call>> receives_;
  std::list<std::shared_ptr<Moving>> moving_;
};

}  // namespace tessera::internal::mpi
