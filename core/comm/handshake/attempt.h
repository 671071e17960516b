#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/handshake/handshake.h"
#include "tessera/core/comm/handshake/handshake_store.h"
#include "tessera/core/comm/handshake/heartbeat.h"
#include "tessera/core/comm/handshake/hello.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/process_status.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {

/// Note [Handshake]
/// ~~~~~~~~~~~~~~~~
/// A store may hold keys of an earlier attempt, and two processes may believe that they are the
/// same rank. So every call of init_process_group makes a nonce, and later messages are stored
/// under keys that contain nonces. Each rank writes a Hello under the key of its rank; a rank that
/// finds another process's Hello there writes its own again, so that the host sees both. Only the
/// host (Note [Endpoints]) reads them and decides. It ignores Hellos of processes that have ended,
/// and of earlier worlds of a process that still runs. Once each rank has one live Hello, the host
/// opens the transport and writes its address for each nonce; the ranks connect and confirm; when
/// all have, the host writes "go". Any error before that fails on all ranks: a conflict (the host
/// waits a moment so that the others can come and read it), a death, a rank that gives up, a
/// transport that cannot be made or entered. Two hosts with one number may both admit a rank. It
/// enters one's transport and from then on reads only what that one writes for it, under a key of
/// both their nonces: else a late address or failure of the other host could replace the "go", and
/// the first would have met a rank that has not met it.

/// How ranks communicate after the handshake: the host opens it, the others enter it.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Whether the ranks must be on one host.
  virtual bool is_local() const = 0;
  /// Called by the host, which knows all processes. Returns one line of text with which the others
  /// can enter().
  virtual std::string open(const std::vector<int>& pids) = 0;
  /// Called by the other ranks. Throws if there is nothing at what the text names.
  virtual void enter(const std::string& text) = 0;
};

/// One rank's side of the handshake: the common part of HostAttempt and MemberAttempt.
class Attempt {
 public:
  Attempt(const Endpoint& endpoint, const HandshakeOptions& options, Transport& transport)
      : endpoint_(endpoint),
        options_(options),
        transport_(transport),
        store_(endpoint.own == nullptr && !options.job_token.empty()
                   ? HandshakeStore(*endpoint.store, options.job_token)
                   : HandshakeStore(*endpoint.store)),
        heartbeat_(store_),
        own_(Hello::of_this_process(options.rank, options.world_size, options.job_token,
                                    options.device)),
        start_(endpoint.since) {}
  virtual ~Attempt() = default;
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  void run() {
    try {
      bound_store();
      refuse_earlier_duplicate();
      if (endpoint_.own != nullptr) endpoint_.own->set_when_gone(mark_key(own_.nonce), kGone);
      store_.set(hello_key(options_.rank), own_.to_text());
      take_part();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {  // the store's: its host may have ended
      const std::string cause = error_text(error);
      if (endpoint_.own != nullptr && !endpoint_.is_host) {
        const HostProcess& host = endpoint_.own->host();
        report_failure(host.rank, cause, host.machine == own_.host ? host.pid : 0);
      }
      give_up(cause);
    } catch (...) {
      give_up(present_error_text());
    }
  }

 protected:
  using Clock = std::chrono::steady_clock;

  // The texts in the store, and their keys.
  static constexpr auto kMaxPause = std::chrono::milliseconds(20);
  // At the time-out the host knows most, so members wait a little longer for its error text.
  static constexpr auto kGrace = std::chrono::milliseconds(500);
  static constexpr const char* kEntered = "entered ";  // and the host's nonce
  static constexpr const char* kGone = "gone";
  static constexpr const char* kFailed = "failed: ";
  // And the host's nonce, and the transport's text in a line.
  static constexpr const char* kEnter = "enter\n";
  static constexpr const char* kGo = "go";
  static constexpr const char* kFailure = "failure\n";
  static constexpr const char* kFailureOfAll =
      "tessera/failure_of_all";  // where nobody else's attempt is

  static std::string hello_key(int rank) { return absl::StrCat("tessera/hello/", rank); }
  /// For a rank that has entered no transport.
  static std::string answer_key(const std::string& nonce) {
    return absl::StrCat("tessera/answer/", nonce);
  }
  /// For a rank that has entered that host's.
  static std::string answer_key(const std::string& nonce, const std::string& host_nonce) {
    return absl::StrCat("tessera/answer/", nonce, "/", host_nonce);
  }
  static std::string mark_key(const std::string& nonce) {
    return absl::StrCat("tessera/mark/", nonce);
  }

  /// The Hello in the store under a rank's key, if there is a valid one.
  std::optional<Hello> read_hello(int rank) {
    const auto text = store_.get(hello_key(rank));
    return text ? Hello::from_text(*text) : std::nullopt;
  }

  virtual void take_part() = 0;

  [[noreturn]] void give_up(const std::string& cause) {
    try {
      mark_failed(own_.nonce, cause);
    } catch (const std::exception&) {  // the store may be what failed
    }
    throw CommError({"init_process_group", "world", -1, options_.rank, ""}, cause);
  }

  /// The Hello of this nonce is part of no attempt from now on.
  void mark_failed(const std::string& nonce, const std::string& cause) {
    store_.set(mark_key(nonce), absl::StrCat(kFailed, cause));
  }

  /// Bounds the store's own time-out by the time that is left.
  void bound_store() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        start_ + bounded(options_.timeout) + kGrace - Clock::now());
    endpoint_.store->setTimeout(std::max<std::chrono::milliseconds>(left, kGrace));
  }

  void pause() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, kMaxPause);
  }
  void pause_shortly_again() { pause_ = std::chrono::milliseconds(1); }

  bool is_time_out(Clock::duration grace = {}) const {
    return Clock::now() - start_ > bounded(options_.timeout) + grace;
  }

  /// Whether the process of a Hello still takes part; `known` if it has been seen to.
  enum class Life : uint8_t { kNone, kTakesPart, kEnded };
  Life life_of(const Hello& hello, bool known) {
    if (hello.host == own_.host && own_.start_time != 0) {  // else /proc is hidden
      if (hello.is_alive()) return Life::kTakesPart;
      return known ? Life::kEnded : Life::kNone;
    }
    if (endpoint_.own != nullptr)
      return Life::kTakesPart;  // else its mark would say that it is gone
    const Heartbeat::Sign sign = heartbeat_.sign_of(hello.nonce);
    if (sign == Heartbeat::Sign::kStopped) return Life::kEnded;
    return sign == Heartbeat::Sign::kRuns ? Life::kTakesPart : Life::kNone;
  }

  void beat() {
    if (endpoint_.own == nullptr) heartbeat_.beat(own_.nonce);
  }

  std::string name_of(const Hello& hello) const {
    return absl::StrCat("rank ", hello.rank, " (pid ", hello.pid,
                        hello.host == own_.host ? "" : absl::StrCat(" on ", hello.host_name), ")");
  }

  /// The process of a Hello if it is one of this host, else 0.
  int pid_of(const Hello& hello) const { return hello.host == own_.host ? hello.pid : 0; }

  /// "rank 1 (pid 12), which is stopped".
  std::string state_of(const Hello& hello) const {
    const int pid = pid_of(hello);
    if (pid == 0 || own_.start_time == 0) return name_of(hello);
    const auto status = process_status(pid);
    const std::string does = !hello.is_alive() ? "has ended" : status ? status->describe() : "";
    return absl::StrCat(name_of(hello), does.empty() ? "" : ", which ", does);
  }

  /// "rank 1, rank 2 did not come to /run/user/7/tessera/slurm-17.0".
  std::string missing_text(const std::vector<int>& missing) const {
    std::string strangers;
    const int64_t rejected = endpoint_.own != nullptr ? endpoint_.own->rejected() : 0;
    if (store_.ignored() != 0) {
      strangers = "; some texts in the store do not verify";
    } else if (rejected != 0) {
      strangers = absl::StrCat("; ", rejected, rejected == 1 ? " connection" : " connections",
                               " did not prove to belong to this job");
    }
    if (!strangers.empty())
      absl::StrAppend(
          &strangers,
          ": give all ranks the same TESSERA_JOB_TOKEN, and each job a place of its own");
    return absl::StrCat("timed out after ", options_.timeout.count(), " ms: rank ",
                        absl::StrJoin(missing, ", rank "), " did not come",
                        endpoint_.place.empty() ? "" : " to ", endpoint_.place, strangers);
  }

  /// The failure that another rank has written for this one, if any.
  std::optional<std::string> failure_of_others() {
    const auto answer = store_.get(own_answer_key_);
    if (!answer || !absl::StartsWith(*answer, kFailure)) return std::nullopt;
    return answer->substr(std::string_view(kFailure).size());
  }

  /// Throws it.
  void check_failure() {
    if (const auto failure = failure_of_others()) give_up(*failure);
  }

  static std::string duplicates_text(int rank, int pid, int other) {
    const auto pids = std::minmax(pid, other);
    return absl::StrCat("RANK ", rank, " was given twice, to pid ", pids.first, " and to pid ",
                        pids.second, "; give each process its own RANK");
  }

  const Endpoint& endpoint_;
  const HandshakeOptions& options_;
  Transport& transport_;
  HandshakeStore store_;
  Heartbeat heartbeat_;
  const Hello own_;
  const Clock::time_point start_;
  std::string own_answer_key_ = answer_key(own_.nonce);  // where others write for this rank

 private:
  /// In a store that may have been used before: throws if another process has this rank in an
  /// existing world.
  void refuse_earlier_duplicate() {
    if (endpoint_.own != nullptr) return;
    const auto hello = read_hello(options_.rank);
    if (!hello || hello->host != own_.host || hello->pid == own_.pid || !hello->is_alive()) return;
    const auto mark = store_.get(mark_key(hello->nonce));
    if (!mark || !absl::StartsWith(*mark, kEntered)) return;
    const std::string cause = duplicates_text(options_.rank, hello->pid, own_.pid);
    report_failure(-1, cause);
    give_up(cause);
  }

  std::chrono::milliseconds pause_{1};
};

}  // namespace tessera::internal
