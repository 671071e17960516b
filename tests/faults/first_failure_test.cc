#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/environment.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/tools/launched_job.h"

// The rank that tessera-run names when one rank fails and the others fail because of it. See Note
// [First failure].
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

void fail(const std::string& how) {
  if (how == "throw") throw std::runtime_error("out of data");
  if (how == "terminate") {
    std::thread([] { throw std::runtime_error("thrown in a thread"); }).join();
  }
  if (how == "exit3") std::exit(3);
  if (how == "exit0") std::exit(0);
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "segv") {
    ::prctl(PR_SET_DUMPABLE, 0);
    ::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  }
  if (how == "stop") ::raise(SIGSTOP);
  if (how == "loop") {
    for (volatile bool go_on = true; go_on;) {
    }
  }
}

/// Trains until it fails, as FAULT_HOW and FAULT_RANK say, or loses its peers.
const RankProcessBody kTrainAndFail("train_and_fail", [] {
  ProcessGroupOptions options;
  options.timeout = std::chrono::milliseconds(
      std::atoi(process_environment("FAULT_TIMEOUT_MS").value_or("").c_str()));
  auto world = init_process_group(options);
  const bool is_victim =
      absl::StrCat(world->rank()) == process_environment("FAULT_RANK").value_or("");
  Trainer trainer(world,
                  configuration_called(process_environment("FAULT_CONFIGURATION").value_or("")));
  trainer.train(0);
  const at::Tensor loss = trainer.loss(1);
  if (is_victim) fail(process_environment("FAULT_HOW").value_or(""));
  loss.backward();
  trainer.engine->step();
});

/// Runs tessera-run with that body; the time-out is for victims that do not end.
LaunchedJob launch(const std::string& how, const Configuration& configuration, int ranks,
                   int victim, int timeout_ms = 20000) {
  return LaunchedJob(
      {"--nproc-per-node", absl::StrCat(ranks), "--grace-seconds", "1", "--",
       std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=train_and_fail"},
      {{"FAULT_HOW", how},
       {"FAULT_RANK", absl::StrCat(victim)},
       {"FAULT_CONFIGURATION", configuration.name},
       {"FAULT_TIMEOUT_MS", absl::StrCat(timeout_ms)}});
}

std::string first_failure_in(const std::string& text) {
  const std::string label = "tessera-run: first failure: ";
  const size_t at = text.find(label);
  if (at == std::string::npos) return "";
  return text.substr(at + label.size(), text.find('\n', at) - at - label.size());
}

/// The call in which the others noticed.
const std::string kMissed =
    ": \\[comm\\] [a-z_]+ #[0-9]+ ('[^']+' )?on group '[^']+', rank [02]: rank 1 \\(pid [0-9]+\\) "
    "died";

struct Way {
  std::string how;
  int exit_code;
  std::string named;  ///< a regular expression
};

class FirstFailure : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Faults, FirstFailure,
    ::testing::Values(
        Way{"throw", 1, "exited with code 1 after step 1: rank 1 left while an exception unwound"},
        Way{"terminate", 134, "died of signal 6 \\(SIGABRT\\).*: thrown in a thread"},
        Way{"exit3", 3, "exited with code 3 after step 1(" + kMissed + ")?"},
        Way{"exit0", 1, "exited with code 0 after step 1" + kMissed},
        Way{"kill", 137, "died of signal 9 \\(SIGKILL\\) after step 1(.*" + kMissed + ")?"},
        Way{"segv", 139, "died of signal 11 \\(SIGSEGV\\) after step 1(" + kMissed + ")?"}),
    [](const auto& info) { return info.param.how; });

TEST_P(FirstFailure, IsNamedWithItsCauseAndTheSurvivorsSayTheirs) {
  for (const Configuration& configuration :
       {configuration_of(Strategy::kDdp), configuration_of(Strategy::kZero3)}) {
    LaunchedJob job = launch(GetParam().how, configuration, 3, 1);
    EXPECT_EQ(job.wait(), GetParam().exit_code) << job.err();
    EXPECT_THAT(first_failure_in(job.err()),
                MatchesRegex("rank 1 \\(pid [0-9]+\\) " + GetParam().named));
    const std::string said = job.out() + job.err();
    for (const int survivor : {0, 2}) {
      EXPECT_THAT(said, MatchesRegex(absl::StrCat("(.|\n)*\n?\\[", survivor,
                                                  "\\] [^\n]*\\[comm\\] [^\n]*rank 1 (.|\n)*")))
          << "says which call it was in";
    }
  }
}

TEST(FirstFailureOfOneThatDoesNotEnd, IsNamedWithWhatItDoes) {
  for (const auto& [how, activity] :
       {std::pair("stop", "is stopped (SIGSTOP or a debugger)"), std::pair("loop", "computes")}) {
    LaunchedJob job = launch(how, configuration_of(Strategy::kZero1), 3, 2, /*timeout_ms=*/3000);
    EXPECT_EQ(job.wait(), 1) << job.err();
    EXPECT_THAT(first_failure_in(job.err()),
                AllOf(HasSubstr("rank 2 (pid "), HasSubstr(" waited 3000 ms for rank 2 (pid "),
                      HasSubstr(std::string("collectives and ") + activity),
                      MatchesRegex(".*: \\[comm\\] [a-z_]+ #[0-9]+ ('[^']+' )?on group '[^']+', "
                                   "rank ([01]): timed out: rank [01] waited.*")));
  }
}

TEST(FirstFailureControl, NobodyFailsNobodyIsNamed) {
  LaunchedJob job = launch("not", configuration_of(Strategy::kZero3), 3, 1);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("failure")));
}

}  // namespace
}  // namespace tessera::internal::testing
