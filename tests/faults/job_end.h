#pragma once

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <regex>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/tests/faults/random_case.h"

namespace tessera::internal::testing {

/// What can be observed of a job after its end.
struct JobEnd {
  struct Rank {
    /// 128 + signal; with a launcher only the launcher's code is known.
    std::optional<int> exit_code;
    std::string said;
  };
  std::vector<Rank> ranks;
  std::optional<int> launcher_code;  ///< -1: it hangs
  std::string launcher_said;         ///< the launcher's own output
  bool hung = false;
  std::vector<std::string> processes;  ///< processes that are left
  /// Files that are left, relative to the folder where the job may write.
  std::vector<std::string> files;
};

inline std::ostream& operator<<(std::ostream& out, const JobEnd& end) {
  for (size_t rank = 0; rank < end.ranks.size(); ++rank) {
    out << "--- rank " << rank;
    if (end.ranks[rank].exit_code) out << ", exit code " << *end.ranks[rank].exit_code;
    out << "\n" << end.ranks[rank].said;
  }
  if (end.launcher_code) {
    out << "--- tessera-run, exit code " << *end.launcher_code << "\n" << end.launcher_said;
  }
  return out;
}

/// The time in a line "<what> at <time> ns".
inline std::optional<int64_t> time_of(const std::string& what, const std::string& said) {
  const std::string label = absl::StrCat("\n", what, " at ");
  const size_t at = said.find(label);
  int64_t time = 0;
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + label.size();
  if (!absl::SimpleAtoi(said.substr(begin, said.find(' ', begin) - begin), &time)) {
    return std::nullopt;
  }
  return time;
}

/// A CommError in a program's output.
struct ToldFailure {
  std::string call;        ///< "all_reduce #7 'bucket 0'"; "" if the text names none
  std::string cause;       ///< the text after the raising rank
  std::vector<int> ranks;  ///< ranks that the cause names, by their numbers in the world
};

/// The last CommError in a rank's output.
inline std::optional<ToldFailure> failure_in(const std::string& said) {
  static const std::regex kText("\\[comm\\] (.*) on group '[^']*', rank [0-9]+: (.*)");
  static const std::regex kRank("rank ([0-9]+)");
  std::optional<ToldFailure> told;
  const std::vector<std::string> lines = absl::StrSplit(said, '\n');

  for (const std::string& text : lines) {
    std::smatch match;
    if (!std::regex_match(text, match, kText)) continue;
    told = ToldFailure{match[1], match[2], {}};
    const std::string& cause = told->cause;
    for (std::sregex_iterator rank(cause.begin(), cause.end(), kRank), end; rank != end; ++rank) {
      told->ranks.push_back(std::stoi((*rank)[1]));
    }
  }
  return told;
}

/// Compares what a job left and printed with what it should have.
class Judgement {
 public:
  Judgement(const RandomCase& drawn, const JobEnd& end) : drawn_(drawn), end_(end) {
    if (end.hung) complain("the job hangs");
    for (const std::string& process : end.processes) complain("is left: process ", process);
    check_files();
    check_victim();
    for (int rank = 0; rank < drawn.size; ++rank) {
      if (rank != drawn.victim) check_survivor(rank);
    }
    if (drawn.is_launched) check_launcher();
  }

  /// One line for each problem.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  template <typename... Parts>
  void complain(const Parts&... parts) {
    complaints_.push_back(absl::StrCat(parts...));
  }

  const std::string& said_by(int rank) const { return end_.ranks[static_cast<size_t>(rank)].said; }
  bool has_faulted() const { return time_of("fault", said_by(drawn_.victim)).has_value(); }
  bool was_told(int rank) const { return time_of("told", said_by(rank)).has_value(); }
  bool is_done(int rank) const { return time_of("done", said_by(rank)).has_value(); }
  std::string victim() const { return absl::StrCat("rank ", drawn_.victim); }

  void check_files() {
    for (const std::string& file : end_.files) {
      // A rank that dies in the meeting cannot remove it, and no other process knows whose it is.
      const bool may_stay = file == "store" && !drawn_.is_launched &&
                            drawn_.moment == FaultMoment::kMeeting && drawn_.fault != Fault::kStop;
      if (!may_stay) complain("is left: file ", file);
    }
  }

  int code_of_fault() const {
    switch (drawn_.fault) {
      case Fault::kKill:
        return 128 + SIGKILL;
      case Fault::kSegv:
        return 128 + SIGSEGV;
      case Fault::kTerminate:
        return 128 + SIGABRT;
      case Fault::kExit3:
        return 3;
      case Fault::kExit0:
        return 0;
      case Fault::kThrow:
      case Fault::kStop:  // it learns of the end when it is resumed
        break;
    }
    return 1;
  }

  void check_victim() {
    // It may finish before it makes that many system calls.
    const bool may_come_through = drawn_.moment == FaultMoment::kDestruction;
    if (!has_faulted() && !may_come_through) complain(victim(), " did not do what was drawn");
    const std::optional<int> code = end_.ranks[static_cast<size_t>(drawn_.victim)].exit_code;
    if (!code || !has_faulted()) return;
    if (*code == code_of_fault() || (drawn_.fault == Fault::kStop && *code == 0)) return;
    complain(victim(), " ended with code ", *code, " instead of ", code_of_fault());
  }

  void check_survivor(int rank) {
    const std::string who = absl::StrCat("rank ", rank);
    const std::optional<int> code = end_.ranks[static_cast<size_t>(rank)].exit_code;
    if (is_done(rank)) {
      if (!drawn_.is_at_end()) complain(who, " came through without ", victim());
      if (code && *code != 0) complain(who, " came through and ended with code ", *code);
      return;
    }
    // The launcher may kill ranks that cannot know, or need not.
    const bool may_be_ended = drawn_.is_launched && (drawn_.is_at_start() || drawn_.is_at_end());
    if (!was_told(rank)) {
      if (!may_be_ended) complain(who, " was not told");
      return;
    }
    if (drawn_.moment == FaultMoment::kGroupGone)
      complain(who, " misses one that had left in order");
    if (code && *code != 1) complain(who, " was told and ended with code ", *code);
    check_words(who, failure_in(said_by(rank)));
  }

  void check_words(const std::string& who, const std::optional<ToldFailure>& told) {
    if (!told) {
      complain(who, " says no failure of communication");
      return;
    }
    if (told->call.empty()) complain(who, " does not say in which call it was");
    const auto& ranks = told->ranks;
    const bool is_first = !ranks.empty() && ranks.front() == drawn_.victim;
    const bool is_named = std::count(ranks.begin(), ranks.end(), drawn_.victim) > 0;
    // A time-out lists missing ranks; the others in the list may be slow, or waiting themselves.
    const bool may_list = drawn_.needs_time_out() && absl::StrContains(told->cause, "timed out");
    if (!(may_list ? is_named : is_first)) {
      complain(who, " names ", ranks.empty() ? "nobody" : absl::StrCat("rank ", ranks.front()),
               " instead of ", victim(), ": ", told->cause);
    }
    const bool is_stop = drawn_.fault == Fault::kStop && !drawn_.is_at_start();
    if (is_stop && !absl::StrContains(told->cause, "is stopped")) {
      complain(who, " does not say that ", victim(), " is stopped: ", told->cause);
    }
  }

  std::string ending_of_fault() const {
    switch (drawn_.fault) {
      case Fault::kKill:
        return "died of signal 9 (SIGKILL)";
      case Fault::kSegv:
        return "died of signal 11 (SIGSEGV)";
      case Fault::kTerminate:
        return "died of signal 6 (SIGABRT)";
      case Fault::kStop:
        return "is stopped (SIGSTOP or a debugger)";
      default:
        return absl::StrCat("exited with code ", code_of_fault());
    }
  }

  void check_launcher() {
    bool is_missed = drawn_.ends_badly() && has_faulted();
    for (int rank = 0; rank < drawn_.size; ++rank) {
      is_missed = is_missed || (rank != drawn_.victim && was_told(rank));
    }
    const int code = end_.launcher_code.value_or(-1);
    if (!is_missed) {
      if (code != 0 || absl::StrContains(end_.launcher_said, "fail")) {
        complain("nobody failed, and tessera-run ends with code ", code);
      }
      return;
    }
    const int expected = code_of_fault() == 0 ? 1 : code_of_fault();
    if (code != expected) complain("tessera-run ends with code ", code, " instead of ", expected);
    std::vector<std::string> lines = absl::StrSplit(end_.launcher_said, '\n', absl::SkipEmpty());
    const std::string last = lines.empty() ? "" : lines.back();
    const std::string begin = absl::StrCat("tessera-run: first failure: ", victim(), " (pid ");
    const size_t ending = last.find(absl::StrCat(") ", ending_of_fault()));
    if (!absl::StartsWith(last, begin) || ending == std::string::npos) {
      complain("tessera-run names another failure than that ", victim(), " ", ending_of_fault(),
               ": ", last);
    }
  }

  const RandomCase& drawn_;
  const JobEnd& end_;
  std::vector<std::string> complaints_;
};

}  // namespace tessera::internal::testing
