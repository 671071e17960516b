#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/handshake/attempt.h"

namespace tessera::internal {

/// The handshake of a rank that is not the host.
class MemberAttempt final : public Attempt {
 public:
  using Attempt::Attempt;

 private:
  void take_part() override {
    while (true) {
      bound_store();
      beat();
      check_failure();
      if (const auto answer = store_.get(own_answer_key_); answer && handle_answer(*answer)) return;
      if (endpoint_.own != nullptr) {
        if (const auto failure = store_.get(kFailureOfAll)) give_up(*failure);
      }
      expect_host_alive();
      rewrite_hello();
      if (is_time_out(kGrace)) give_up_waiting();
      pause();
    }
  }

  /// Acts on the host's answer. Returns whether the ranks have met.
  bool handle_answer(const std::string& answer) {
    if (answer == kGo && has_entered_) return true;
    const std::vector<std::string> lines = absl::StrSplit(answer, absl::MaxSplits('\n', 2));
    if (has_entered_ || lines.size() != 3 || !absl::StartsWith(answer, kEnter)) return false;
    host_nonce_ = lines[1];
    try {
      transport_.enter(lines[2]);
    } catch (const std::exception& error) {
      expect_host_alive();  // else what it shared went with it
      const std::string cause = error_text(error);
      report_failure(-1, cause);
      give_up(cause);
    }
    has_entered_ = true;
    own_answer_key_ = answer_key(own_.nonce, host_nonce_);
    store_.set(mark_key(own_.nonce), absl::StrCat(kEntered, lines[1]));
    pause_shortly_again();
    return false;
  }

  void expect_host_alive() {
    if (endpoint_.own == nullptr) return expect_rank_0_alive();
    // Its connection may outlive it in a child.
    TORCH_CHECK(!endpoint_.own->host().has_ended(), endpoint_.own->host().text(),
                ", where the ranks meet, died before all ranks had met");
  }

  /// In a user's store, where rank 0 is the host.
  void expect_rank_0_alive() {
    const auto hello = read_hello(0);
    if (!hello || hello->rank != 0) return;
    const bool known = host_nonce_ == hello->nonce;
    const auto mark = store_.get(mark_key(hello->nonce));
    if (known && mark && absl::StartsWith(*mark, kFailed)) {
      check_failure();  // written before the mark for whom the host had seen
      // An attempt that this rank was no part of; rank 0 may try again.
      failure_ = mark->substr(std::string_view(kFailed).size());
      if (life_of(*hello, true) == Life::kEnded) give_up(failure_);
    }
    if (mark && !absl::StartsWith(*mark, kEntered)) return;
    const Life life = life_of(*hello, known);
    if (known && life == Life::kEnded) {
      const std::string cause = absl::StrCat(name_of(*hello), " died before all ranks had met");
      report_failure(0, cause, pid_of(*hello));
      give_up(cause);
    }
    // A rank 0 that has met others already belongs to this attempt only if it answers this rank.
    if (life == Life::kTakesPart && !mark && !has_entered_) host_nonce_ = hello->nonce;
  }

  /// Writes this rank's Hello again if another process has written one under the same rank.
  void rewrite_hello() {
    const auto hello = read_hello(options_.rank);
    if (!hello || hello->nonce != own_.nonce) store_.set(hello_key(options_.rank), own_.to_text());
  }

  [[noreturn]] void give_up_waiting() {
    std::vector<int> missing;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!store_.get(hello_key(rank))) missing.push_back(rank);
    }
    std::string host = "rank 0";
    int host_rank = 0;
    int host_pid = 0;
    if (endpoint_.own != nullptr) {
      const HostProcess& process = endpoint_.own->host();
      host = process.text();
      if (!process.activity().empty()) absl::StrAppend(&host, " ", process.activity());
      host_rank = process.rank;
      host_pid = process.machine == own_.host ? process.pid : 0;
    } else if (const auto hello = read_hello(0); hello && hello->rank == 0) {
      host = state_of(*hello);
      host_pid = pid_of(*hello);
    }
    const std::string cause =
        !missing.empty()
            ? missing_text(missing)
            : absl::StrCat("timed out after ", options_.timeout.count(),
                           " ms: all ranks came, but no answer from ", host,
                           failure_.empty() ? "" : "; it had failed before: ", failure_);
    report_failure(missing.empty() ? host_rank : missing.front(), cause,
                   missing.empty() ? host_pid : 0);
    give_up(cause);
  }

  std::string host_nonce_;
  std::string failure_;  // of an attempt of rank 0 without this rank
  bool has_entered_ = false;
};

}  // namespace tessera::internal
