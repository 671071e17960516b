#include "tessera/core/comm/meeting/meeting.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

// After a conflict, how long to wait for ranks that have not connected yet, so that they are told
// the conflict.
constexpr auto kConflictLinger = std::chrono::seconds(2);
// Time before rank 0 first says which ranks it waits for.
constexpr auto kSilenceBeforeNames = std::chrono::seconds(5);

}  // namespace

class Meeting::Admission {
 public:
  Admission(Server& server, const std::string& place, Transport& transport,
            const MeetingOptions& options, Deadline end)
      : server_(server), place_(place), transport_(transport), options_(options), end_(end) {}

  void run() {
    gather();
    open_transport();
    await_all();
    server_.stop_listening();
    server_.send_to_all(Message::of(MessageKind::kGo));
  }

 private:
  struct Member {
    Hello hello;
    bool has_entered = false;
  };

  void gather() {
    const Deadline start = Clock::now();
    std::optional<Deadline> conflict_seen;
    std::chrono::seconds silence = kSilenceBeforeNames;
    while (true) {
      if (!conflicts_.empty() && !conflict_seen) conflict_seen = Clock::now();
      if (missing().empty() || (conflict_seen && Clock::now() - *conflict_seen > kConflictLinger)) {
        if (conflicts_.empty()) return;
        fail(conflicts_.begin()->second);
      }
      if (Clock::now() >= end_) time_out(options_.timeout.count());
      if (Clock::now() - start > silence) {
        silence *= 2;
        options_.warn(absl::StrCat("[rendezvous] rank ", absl::StrJoin(missing(), ", rank "),
                                   " has not come yet; the others wait"));
      }
      serve();
    }
  }

  void open_transport() {
    std::vector<int> pids(static_cast<size_t>(options_.own.world_size), options_.own.pid);
    for (const auto& [rank, number] : numbers_) {
      pids.at(static_cast<size_t>(rank)) = members_.at(number).hello.pid;
    }
    const auto opening = transport_.open(pids);
    if (!opening.ok()) {
      fail_because_of(-1, absl::StrCat("rank ", options_.own.rank,
                                       " failed: ", std::string(opening.status().message())));
    }
    for (const auto& [rank, number] : numbers_) {
      server_.send(number, Message::of(MessageKind::kEnter, {*opening}));
    }
  }

  void await_all() {
    while (!outside().empty()) {
      if (Clock::now() >= end_) time_out(options_.timeout.count());
      serve();
    }
  }

  void serve() {
    const std::chrono::milliseconds left(milliseconds_until(end_));
    for (const Server::Event& event : server_.serve(left)) {
      if (event.message) {
        hear(event.member, *event.message);
      } else {
        lose(event.member);
      }
    }
  }

  void hear(Server::Member number, const Message& message) {
    if (message.is(MessageKind::kMember, 1)) return admit(number, message.fields[0]);
    const auto member = members_.find(number);
    if (member == members_.end()) return;
    if (message.is(MessageKind::kEntered, 0)) member->second.has_entered = true;
    if (message.is(MessageKind::kGaveUp, 1)) {
      fail(absl::StrCat(member->second.hello.name(), " gave up: ", message.fields[0]));
    }
    int64_t milliseconds = 0;
    if (message.is(MessageKind::kTimedOut, 1) &&
        absl::SimpleAtoi(message.fields[0], &milliseconds)) {
      time_out(milliseconds);
    }
  }

  void admit(Server::Member number, const std::string& text) {
    const auto hello = Hello::from_text(text);
    if (!hello) return;
    std::string conflict;
    if (hello->rank == options_.own.rank) {
      conflict = conflict_of_two(options_.own, *hello);
    } else if (const auto [other, is_new] = numbers_.try_emplace(hello->rank, number); !is_new) {
      conflict = conflict_of_two(members_.at(other->second).hello, *hello);
    } else {
      members_[number] = {.hello = *hello};
      conflict = conflict_of(*hello);
    }
    if (!conflict.empty()) conflicts_.try_emplace(hello->rank, conflict);
  }

  /// Returns the message that two processes were given the same rank.
  static std::string conflict_of_two(const Hello& first, const Hello& second) {
    const auto pids = std::minmax(first.pid, second.pid);
    return absl::StrCat("RANK ", first.rank, " was given twice, to pid ", pids.first,
                        " and to pid ", pids.second, "; give each process its own RANK");
  }

  void lose(Server::Member number) {
    const auto member = members_.find(number);
    if (member == members_.end()) return;
    const Hello& hello = member->second.hello;
    fail_because_of(hello.rank, absl::StrCat(hello.name(), " died before all ranks had met"));
  }

  std::string conflict_of(const Hello& hello) const {
    const Hello& own = options_.own;
    const auto differ = [&](const char* what, const auto& value, const auto& expected) {
      return absl::StrCat("rank ", hello.rank, " has ", what, " ", value, " where rank ", own.rank,
                          " has ", expected);
    };
    if (hello.world_size != own.world_size) {
      return absl::StrCat(differ("WORLD_SIZE", hello.world_size, own.world_size),
                          "; start all ranks with one WORLD_SIZE");
    }
    if (hello.build != own.build) {
      return absl::StrCat(differ("a build of", hello.build, own.build),
                          "; run one build of Tessera on all ranks");
    }
    if (hello.device != own.device) {
      return absl::StrCat(differ("the device", hello.device, own.device),
                          "; give all ranks one kind of device");
    }
    if (transport_.is_local() && hello.host != own.host) {
      return absl::StrCat(
          differ("the host or container", hello.host_name, own.host_name),
          " (another machine or PID namespace) and shares no memory with it: CPUs of several hosts "
          "communicate by MPI; start the ranks with mpirun or srun (TESSERA_BACKEND=mpi; Open MPI "
          "needs --mca btl self,tcp between PID namespaces of one machine), or all of them on one "
          "host");
    }
    return "";
  }

  std::vector<int> missing() const {
    std::vector<int> absent;
    for (int rank = 0; rank < options_.own.world_size; ++rank) {
      if (rank != options_.own.rank && numbers_.count(rank) == 0) absent.push_back(rank);
    }
    return absent;
  }

  /// Returns the ranks that have not yet reported that they have entered the transport.
  std::vector<int> outside() const {
    std::vector<int> ranks;
    for (const auto& [rank, number] : numbers_) {
      if (!members_.at(number).has_entered) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Called at this rank's time-out, or when another rank first reports its time-out.
  void time_out(int64_t milliseconds) {
    if (!conflicts_.empty()) fail(conflicts_.begin()->second);
    const std::string begin = absl::StrCat("timed out after ", milliseconds, " ms: ");
    if (const std::vector<int> absent = missing(); !absent.empty()) {
      fail_because_of(absent.front(), absl::StrCat(begin, "rank ", absl::StrJoin(absent, ", rank "),
                                                   " did not come to ", place_, strangers_text()));
    }
    const std::vector<int> late = outside();
    if (late.empty()) return;  // all have met, and are told so in a moment
    std::vector<std::string> names;
    for (const int rank : late) names.push_back(members_.at(numbers_.at(rank)).hello.state());
    fail_because_of(late.front(),
                    absl::StrCat(begin, "all ranks came, but not all of them finished connecting: ",
                                 absl::StrJoin(names, ", ")));
  }

  std::string strangers_text() const {
    const int64_t strangers = server_.rejected();
    if (strangers == 0) return "";
    return absl::StrCat("; ", strangers, strangers == 1 ? " connection" : " connections",
                        " did not prove to belong to this job: give all ranks the same "
                        "TESSERA_JOB_TOKEN, and each job a place of its own");
  }

  /// Reports `culprit`, the rank that is to blame (-1: this rank), and fails the meeting.
  [[noreturn]] void fail_because_of(int culprit, const std::string& cause) {
    options_.report(culprit, cause);
    fail(cause);
  }

  [[noreturn]] void fail(const std::string& cause) {
    server_.stop_listening();
    server_.send_to_all(Message::of(MessageKind::kFailure, {cause}));
    throw MeetingFailure{cause};
  }

  Server& server_;
  const std::string& place_;
  Transport& transport_;
  const MeetingOptions& options_;
  const Deadline end_;
  std::map<int, Server::Member> numbers_;  // the Server's number for each rank but this one
  std::map<Server::Member, Member> members_;
  // By rank, so that the conflict that is reported does not depend on who connects first.
  std::map<int, std::string> conflicts_;
};

void Meeting::admit_all(Server& server, const std::string& place, Transport& transport,
                        const MeetingOptions& options, Deadline end) {
  Admission(server, place, transport, options, end).run();
}

}  // namespace tessera::internal
