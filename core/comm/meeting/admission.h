#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/meeting.h"

namespace tessera::internal {

/// Rank 0's part of a meeting (Note [Meeting]): which processes are the ranks, and have all of them
/// entered the transport?
class Admission {
 public:
  /// `place`: what messages call it.
  Admission(Server& server, std::string place, Transport& transport, const MeetingOptions& options,
            Deadline end);

  /// Returns when all ranks have entered and know it. Throws MeetingFailure, which all members have
  /// been told.
  void run();

 private:
  struct Member {
    Hello hello;
    bool has_entered = false;
  };

  void gather();
  void open_transport();
  void await_all();
  /// Serves the members for a moment, and acts on what they say.
  void serve();
  void hear(Server::Member number, const Message& message);
  void admit(Server::Member number, const std::string& text);
  void lose(Server::Member number);
  void look_for_deaths();
  std::string conflict_of_two(const Hello& first, const Hello& second) const;
  std::string conflict_of(const Hello& hello) const;
  std::vector<int> missing() const;
  std::vector<int> outside() const;
  void time_out(int64_t milliseconds);
  std::string strangers_text() const;
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void fail_because_of(const Hello& culprit, const std::string& cause);

  Server& server_;
  const std::string place_;
  Transport& transport_;
  const MeetingOptions& options_;
  const Deadline end_;
  Deadline next_look_;
  std::map<int, Server::Member> numbers_;  // by rank; without this one
  std::map<Server::Member, Member> members_;
  std::map<int, std::string> conflicts_;  // by rank, so that it is the same one each time
};

}  // namespace tessera::internal
