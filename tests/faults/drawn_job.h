#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/tests/faults/job_end.h"
#include "tessera/tests/faults/random_case.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/tools/launched_job.h"

namespace tessera::internal::testing {

/// All processes that have `entry` in their environment: "4711 ./train".
inline std::vector<std::string> processes_with(const std::string& entry) {
  std::vector<std::string> found;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream environment(process.path() / "environ");
    const std::string text((std::istreambuf_iterator<char>(environment)), {});
    if (!absl::StrContains(text, entry)) continue;
    std::ifstream command(process.path() / "cmdline");
    std::string line((std::istreambuf_iterator<char>(command)), {});
    std::replace(line.begin(), line.end(), '\0', ' ');
    found.push_back(absl::StrCat(pid, " ", line));
  }
  return found;
}

/// Starts one job, runs it to its end and collects what it leaves.
class DrawnJob {
 public:
  explicit DrawnJob(const RandomCase& drawn, bool nobody_fails = false) : drawn_(drawn) {
    static int jobs = 0;
    mark_ = absl::StrCat(::getpid(), "-", ++jobs, "-of-random-kills");
    environment_ = {{"RANDOM_KILLS_CASE", absl::StrCat(drawn.seed)},
                    {"RANDOM_KILLS_JOB", mark_},
                    {"RANDOM_KILLS_NOBODY", nobody_fails ? "1" : ""},
                    {"TMPDIR", place_.path()}};
    end_.ranks.resize(static_cast<size_t>(drawn.size));
    if (drawn.is_launched) {
      launch();
    } else {
      start();
    }
    end_.processes = processes_with("RANDOM_KILLS_JOB=" + mark_);
    for (const TemporaryDirectory* directory : {&place_, &meeting_place_}) {
      for (const auto& file : std::filesystem::recursive_directory_iterator(directory->path())) {
        end_.files.push_back(std::filesystem::relative(file.path(), directory->path()).string());
      }
    }
  }

  const JobEnd& end() const { return end_; }

 private:
  void start() {
    RankProcessOptions options;
    options.environment = environment_;
    options.environment["TESSERA_STORE"] = absl::StrCat("file://", meeting_place_.path(), "/store");
    options.deadline = kTooLong;
    RankProcesses ranks(drawn_.size, "drawn_rank", options);
    if (drawn_.fault == Fault::kStop) {
      for (int rank = 0; rank < drawn_.size; ++rank) {
        if (rank != drawn_.victim) ranks.wait_for_output(rank, "that it has ended");
      }
      ranks.wait_for_output(drawn_.victim, "fault at");  // or its end
      ranks.kill(drawn_.victim, SIGCONT);
    }
    const std::vector<RankResult> results = ranks.wait();
    for (size_t rank = 0; rank < results.size(); ++rank) {
      end_.ranks[rank] = {results[rank].exit_code, results[rank].output};
      end_.hung = end_.hung || results[rank].timed_out;
    }
  }

  void launch() {
    LaunchedJob job(
        {"--nproc-per-node", absl::StrCat(drawn_.size), "--grace-seconds", "10", "--",
         std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=drawn_rank"},
        environment_);
    if (drawn_.fault == Fault::kStop && drawn_.is_at_end()) let_go_on(job);
    end_.launcher_code = job.wait();
    end_.hung = *end_.launcher_code == -1;
    if (end_.hung) {
      for (const std::string& process : processes_with("RANDOM_KILLS_JOB=" + mark_)) {
        std::fprintf(stderr, "still there: %s\n", process.c_str());
      }
    }
    const std::vector<std::string> lines = absl::StrSplit(absl::StrCat(job.out(), job.err()), '\n');
    for (const std::string& line : lines) sort(line);
  }

  /// A rank that is stopped when no other rank needs it any more makes no rank fail.
  void let_go_on(LaunchedJob& job) {
    const std::string label = absl::StrCat("[", drawn_.victim, "] ");
    if (!job.read_until(label + "fault at")) return;
    bool is_missed = false;
    for (int rank = 0; rank < drawn_.size; ++rank) {
      if (rank == drawn_.victim) continue;
      is_missed = !job.read_until(absl::StrCat("[", rank, "] done at")) || is_missed;
    }
    const size_t at = job.out().find(label + "pid ");
    if (is_missed || at == std::string::npos) return;
    ::kill(std::stoi(job.out().substr(at + label.size() + 4)), SIGCONT);
  }

  void sort(const std::string& line) {
    for (int rank = 0; rank < drawn_.size; ++rank) {
      const std::string label = absl::StrCat("[", rank, "] ");
      if (!absl::StartsWith(line, label)) continue;
      absl::StrAppend(&end_.ranks[static_cast<size_t>(rank)].said, line.substr(label.size()), "\n");
      return;
    }
    if (absl::StartsWith(line, "tessera-run: ")) absl::StrAppend(&end_.launcher_said, line, "\n");
  }

  const RandomCase drawn_;
  std::string mark_;
  TemporaryDirectory place_;
  TemporaryDirectory meeting_place_;
  std::map<std::string, std::string> environment_;
  JobEnd end_;
};

}  // namespace tessera::internal::testing
