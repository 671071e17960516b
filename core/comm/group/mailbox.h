#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"

namespace tessera::internal {

/// This rank's messages in one group. Matches each message with a receive by sender and tag, in the
/// order of the calls. Only a message's sender and receiver take part. Throws Fault if the group
/// must fail.
class Mailbox {
 public:
  explicit Mailbox(Link& link) : link_(link) {}

  /// Starts a send or a receive of this rank.
  void start(const std::shared_ptr<Call>& call);
  /// Takes messages that have arrived, and advances messages under way.
  void advance();
  /// Throws Fault if an awaited rank has left or a wait exceeds the time-out. Reports a long wait.
  void look_for_late(Call::Clock::time_point now, const Patience& patience);
  /// Fails the sends and receives under way with `cause`. Drops messages that no receive has asked
  /// for.
  void end_all(const std::string& cause);

  bool is_busy() const { return !open_.empty(); }
  /// Returns true if a receive waits for a message that has not arrived yet and is too large to be
  /// buffered. Its sender must then wait until this rank takes it.
  bool keeps_sender_waiting() const;

 private:
  void send(const std::shared_ptr<Call>& call);
  void receive(const std::shared_ptr<Call>& call);
  void take_arrivals();
  void take(Arrival arrival);
  bool deliver(Call& receive, const Arrival& arrival);
  bool advance(Call& call);
  std::vector<int> awaited(const Call& call) const;
  bool is_lost(Call& call) const;
  [[noreturn]] void fail_as_left(const Call& call) const;
  [[noreturn]] void time_out(const Call& call, std::chrono::milliseconds timeout) const;

  Link& link_;
  std::list<Arrival> waiting_;             // messages that no receive has asked for
  std::list<std::shared_ptr<Call>> open_;  // sends and receives under way
};

}  // namespace tessera::internal
