#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/core/comm/handshake/attempt.h"

namespace tessera::internal {

/// The handshake of the host, which admits the other ranks.
class HostAttempt final : public Attempt {
 public:
  using Attempt::Attempt;

 private:
  static constexpr std::chrono::seconds kLinger{2};
  static constexpr std::chrono::seconds kSilence{5};  // before it first says whom it waits for

  void take_part() override {
    try {
      gather();
      open_transport();
      await_all();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      reject(absl::StrCat("rank ", options_.rank, " failed: ", error_text(error)));
    }
    if (endpoint_.own != nullptr) endpoint_.own->stop_listening();
    for (const auto& [rank, hello] : members_) {
      store_.set(answer_key(hello.nonce, own_.nonce), kGo);
    }
  }

  /// Until every rank is there.
  void gather() {
    std::optional<Clock::time_point> conflict_seen;
    members_.emplace(own_.rank, own_);
    while (true) {
      bound_store();
      beat();
      check_failure();
      for (int rank = 0; rank < most_ranks(); ++rank) look_at(rank);
      const std::string conflict = find_conflict();
      const auto now = Clock::now();
      if (!conflict.empty()) {
        if (!conflict_seen) conflict_seen = now;
        if (missing().empty() || now - *conflict_seen > kLinger) reject(conflict);
      } else if (missing().empty()) {
        return;
      }
      if (is_time_out()) {
        const std::string cause = missing_text(missing());
        report_failure(missing().front(), cause);
        reject(cause);
      }
      if (now - start_ > silence_) {
        silence_ *= 2;
        TORCH_WARN("[rendezvous] rank ", absl::StrJoin(missing(), ", rank "),
                   " has not come yet; the others wait");
      }
      pause();
    }
  }

  int most_ranks() const {
    int most = options_.world_size;
    for (const auto& [rank, hello] : members_) most = std::max(most, hello.world_size);
    return most;
  }

  void look_at(int rank) {
    const auto hello = read_hello(rank);
    const auto member = members_.find(rank);
    // A member that came before must still be alive, whichever Hello the key holds now.
    if (member != members_.end() && member->second.nonce != own_.nonce)
      expect_alive(member->second);
    if (!hello || hello->rank != rank || ended_.count(hello->nonce) != 0) return;
    if (member != members_.end() && member->second.nonce == hello->nonce) return;
    const auto mark = store_.get(mark_key(hello->nonce));
    if (rank == own_.rank && mark && absl::StartsWith(*mark, kEntered)) {
      // Written after this rank's own Hello, so by a process with the same rank, which has met the
      // others meanwhile.
      const std::string cause = duplicates_text(rank, own_.pid, hello->pid);
      report_failure(-1, cause);
      give_up(cause);
    }
    // A JobStore is new for each job: there every mark belongs to this attempt.
    if (mark && endpoint_.own != nullptr) return expect_alive(*hello);
    if (mark) {  // of an earlier world or attempt, or gone before it was seen
      ended_.insert(hello->nonce);
      return;
    }
    const Life life = life_of(*hello, false);
    if (life != Life::kTakesPart) {
      if (life == Life::kEnded) ended_.insert(hello->nonce);
      return;
    }
    if (member == members_.end()) {
      members_.emplace(rank, *hello);
    } else {
      duplicate_ = *hello;
    }
  }

  /// The failure on all if a member has ended or given up.
  void expect_alive(const Hello& member) {
    const auto mark = store_.get(mark_key(member.nonce));
    if (mark && absl::StartsWith(*mark, kFailed)) {
      const std::string cause = mark->substr(std::string_view(kFailed).size());
      reject(absl::StrCat(name_of(member), " gave up: ", cause));
    }
    if (mark == kGone || (!mark && life_of(member, true) == Life::kEnded)) {
      const std::string cause = absl::StrCat(name_of(member), " died before all ranks had met");
      report_failure(member.rank, cause, pid_of(member));
      reject(cause);
    }
  }

  std::string find_conflict() const {
    if (duplicate_ && !duplicate_->has_token(options_.job_token)) {
      return absl::StrCat("pid ", duplicate_->pid, " came as rank ", duplicate_->rank,
                          " with another TESSERA_JOB_TOKEN than rank ", options_.rank,
                          ": two jobs meet in one place; give each its own");
    }
    if (duplicate_)
      return duplicates_text(duplicate_->rank, members_.at(duplicate_->rank).pid, duplicate_->pid);
    const Hello& first = members_.begin()->second;
    for (const auto& [rank, hello] : members_) {
      const auto differ = [&first, rank = rank](const char* what, const auto& value,
                                                const auto& expected) {
        return absl::StrCat("rank ", rank, " has ", what, " ", value, " where rank ", first.rank,
                            " has ", expected);
      };
      if (hello.world_size != first.world_size) {
        return absl::StrCat(differ("WORLD_SIZE", hello.world_size, first.world_size),
                            "; start all ranks with one WORLD_SIZE");
      }
      if (hello.build != first.build) {
        return absl::StrCat(differ("a build of", hello.build, first.build),
                            "; run one build of Tessera on all ranks");
      }
      if (hello.device != first.device) {
        return absl::StrCat(differ("the device", hello.device, first.device),
                            "; give all ranks one kind of device");
      }
      if (transport_.is_local() && hello.host != first.host) {
        const bool has_one_name = hello.host_name == first.host_name;
        return absl::StrCat(
            differ("the host or container", hello.host_name, first.host_name),
            has_one_name ? " (another machine or PID namespace, of that name, too)" : "",
            " and shares no memory with it: CPUs of several hosts communicate by MPI; start the "
            "ranks with mpirun or srun (",
            has_one_name ? "and TESSERA_BACKEND=mpi; Open MPI needs --mca btl self,tcp between PID "
                           "namespaces of one machine"
                         : "backend 'mpi'",
            "), or all of them on one host");
      }
      if (hello.has_token(options_.job_token)) continue;
      return absl::StrCat("rank ", rank, " (pid ", hello.pid,
                          ") has another TESSERA_JOB_TOKEN than rank ", options_.rank,
                          "; it may belong to another job");
    }
    return "";
  }

  std::vector<int> missing() const {
    std::vector<int> absent;
    for (int rank = 0; rank < most_ranks(); ++rank) {
      if (members_.count(rank) == 0) absent.push_back(rank);
    }
    return absent;
  }

  void open_transport() {
    std::vector<int> pids(static_cast<size_t>(options_.world_size));
    for (const auto& [rank, hello] : members_) pids.at(static_cast<size_t>(rank)) = hello.pid;
    const std::string text = transport_.open(pids);
    for (const auto& [rank, hello] : members_) {
      store_.set(answer_key(hello.nonce), absl::StrCat(kEnter, own_.nonce, "\n", text));
    }
    store_.set(mark_key(own_.nonce), absl::StrCat(kEntered, own_.nonce));
    pause_shortly_again();
  }

  /// Whether a member has entered this host's transport. Throws if it has entered another host's;
  /// it is not disturbed then.
  bool has_entered(const Hello& member) {
    const auto mark = store_.get(mark_key(member.nonce));
    if (!mark || !absl::StartsWith(*mark, kEntered)) return false;
    if (*mark == absl::StrCat(kEntered, own_.nonce)) return true;
    const auto other = read_hello(own_.rank);
    const std::string cause = duplicates_text(own_.rank, own_.pid, other ? other->pid : own_.pid);
    report_failure(-1, cause);
    give_up(cause);
  }

  /// Blocks until every rank has entered.
  void await_all() {
    std::set<int> outside;
    for (const auto& [rank, hello] : members_) outside.insert(rank);
    while (true) {
      bound_store();
      beat();
      // Those that have entered hear it from this rank alone.
      if (const auto failure = failure_of_others()) reject(*failure);
      std::erase_if(outside, [&](int rank) {
        const Hello& member = members_.at(rank);
        if (member.nonce == own_.nonce || has_entered(member)) return true;
        expect_alive(member);
        return false;
      });
      if (outside.empty()) return;
      if (is_time_out()) {
        std::vector<std::string> names;
        for (const int rank : outside) names.push_back(state_of(members_.at(rank)));
        const std::string cause =
            absl::StrCat("timed out after ", options_.timeout.count(),
                         " ms: all ranks came, but not all of them finished connecting: ",
                         absl::StrJoin(names, ", "));
        const Hello& first = members_.at(*outside.begin());
        report_failure(first.rank, cause, pid_of(first));
        reject(cause);
      }
      pause();
    }
  }

  /// In a user's store ranks may try again before all have read the failure: their messages of this
  /// attempt must not be taken for messages of the next one.
  void reject(const Hello& member, const std::string& cause) {
    const std::string failure = absl::StrCat(kFailure, cause);
    store_.set(answer_key(member.nonce), failure);
    store_.set(answer_key(member.nonce, own_.nonce), failure);
    if (endpoint_.own == nullptr) mark_failed(member.nonce, cause);
  }

  /// Ends the attempt of all connected ranks with the same cause.
  [[noreturn]] void reject(const std::string& cause) {
    if (duplicate_) reject(*duplicate_, cause);
    for (const auto& [rank, hello] : members_) reject(hello, cause);
    if (endpoint_.own != nullptr) {  // whoever is connected and has not said Hello yet
      endpoint_.own->stop_listening();
      store_.set(kFailureOfAll, cause);
    }
    give_up(cause);
  }

  std::map<int, Hello> members_;    // by rank; this one, too
  std::optional<Hello> duplicate_;  // of one of them
  std::chrono::seconds silence_ = kSilence;
  std::set<std::string> ended_;  // nonces that are no part of this attempt
};

}  // namespace tessera::internal
