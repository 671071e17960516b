#include "tessera/core/comm/meeting/meeting.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMaxSearchPause = std::chrono::milliseconds(20);
constexpr auto kPauseAfterRefusal = std::chrono::milliseconds(200);
// After this time a rank that has not been let in says what it waits for.
constexpr auto kSilentSearch = std::chrono::seconds(5);
// How long this rank waits for a server to let it in. A server answers in microseconds, or in
// seconds if it is flooded with connections.
constexpr auto kMaxProof = std::chrono::seconds(10);
// Used if this process is rank 0 and another process already listens at its place. That process may
// be a rank 0 of the same job, which this rank then joins, or another program. This rank tries for
// this long to find out which of the two it is.
constexpr auto kTimeToTell = std::chrono::seconds(2);

}  // namespace

class Meeting::Search {
 public:
  Search(Place& place, const MeetingOptions& options, Deadline end)
      : place_(place), options_(options), end_(end) {}

  Side listen() {
    while (true) {
      auto listener = place_.listen(end_);
      if (listener.ok()) {
        return std::make_unique<Server>(*std::move(listener), place_.credentials(), options_.own,
                                        options_.warn);
      }
      if (absl::IsAlreadyExists(listener.status())) return join_another_rank_0(listener.status());
      note(listener.status());
      pause_or_give_up();
    }
  }

  Side connect() {
    while (true) {
      if (auto connection = enter(std::min(end_, Clock::now() + kMaxProof))) {
        return connection;
      }
      pause_or_give_up();
    }
  }

 private:
  Side join_another_rank_0(const absl::Status& taken) {
    auto connection = enter(std::min(end_, Clock::now() + kTimeToTell));
    if (connection == nullptr) refuse(taken);
    return connection;
  }

  [[noreturn]] static void refuse(const absl::Status& status) {
    throw MeetingFailure{absl::StrCat("[rendezvous] ", std::string(status.message())),
                         /*is_place_wrong=*/true};
  }

  /// Records a transient error; throws permanent ones.
  void note(const absl::Status& status) {
    if (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) refuse(status);
    problem_ = std::string(status.message());
    // Keep the text of an earlier refusal. The process that refused this rank may have ended since,
    // and "nobody listens" alone would not explain the failure.
    if (!refusal_.empty()) problem_ = absl::StrCat(refusal_, "; by now ", problem_);
  }

  /// Connects to the process that listens at the place. If none listens, or if it does not let this
  /// rank in, notes why and returns null.
  std::unique_ptr<Connection> enter(Deadline deadline) {
    auto socket = place_.connect(deadline);
    if (!socket.ok()) {
      note(socket.status());
      return nullptr;
    }
    pid_ = peer_pid(socket->get());
    auto connection =
        Connection::enter(*std::move(socket), place_.credentials(), options_.own, deadline);
    if (connection.ok()) return *std::move(connection);
    // If the deadline has cut this attempt short, keep the text of an earlier refusal, which
    // explains more.
    const bool is_cut = absl::IsDeadlineExceeded(connection.status()) && !refusal_.empty();
    if (!is_cut)
      problem_ = absl::StrCat(peer_name(), " ", std::string(connection.status().message()));
    if (absl::IsDataLoss(connection.status())) refusal_ = problem_;
    if (!refusal_.empty()) pause_ = kPauseAfterRefusal;
    const std::string does = pid_ != 0 ? process_activity(pid_) : "";
    if (!does.empty()) absl::StrAppend(&problem_, " and ", does);
    return nullptr;
  }

  /// Returns text that names the process that listens, such as "rank 0 (pid 12), which listens at
  /// /tmp/job,".
  std::string peer_name() const {
    if (pid_ == 0) return absl::StrCat("what listens at ", place_.text());
    return absl::StrCat("rank 0 (pid ", pid_, "), which listens at ", place_.text(), ",");
  }

  void pause_or_give_up() {
    const auto now = Clock::now();
    if (now >= end_) {
      const std::string cause = absl::StrCat("timed out after ", options_.timeout.count(),
                                             " ms: ", place_.text(), ": ", problem_);
      options_.report(options_.own.rank == 0 ? -1 : 0, cause);
      throw MeetingFailure{cause};
    }
    if (!has_warned_ && now - start_ > kSilentSearch) {
      has_warned_ = true;
      options_.warn(absl::StrCat("[rendezvous] rank ", options_.own.rank, " waits: ", place_.text(),
                                 ": ", problem_));
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::max(pause_, std::chrono::milliseconds(kMaxSearchPause)));
  }

  Place& place_;
  const MeetingOptions& options_;
  const Deadline start_ = Clock::now();
  const Deadline end_;
  int pid_ = 0;  // the process that listens; 0 if the kernel does not report it
  bool has_warned_ = false;
  std::string problem_ = "nobody came";
  std::string refusal_;  // the error when a process turned this rank away
  std::chrono::milliseconds pause_{1};
};

Meeting::Side Meeting::arrive(Place& place, const MeetingOptions& options, Deadline end) {
  Search search(place, options, end);
  return options.own.rank == 0 ? search.listen() : search.connect();
}

}  // namespace tessera::internal
