#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/environment.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/drawn_job.h"
#include "tessera/tests/faults/job_end.h"
#include "tessera/tests/faults/random_case.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/faults/victim.h"
#include "tessera/tests/support/rank_processes.h"

// Jobs that lose a rank in some way at a random moment, drawn from a seed: the errors of the ranks,
// and what is left. For more jobs: TESSERA_RANDOM_KILLS=200, starting at seed
// TESSERA_RANDOM_KILLS_SEED.
namespace tessera::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kDefaultCases = 12;
constexpr uint64_t kDefaultSeed = 11507;  // every fault, most moments, few time-outs
constexpr int kLastStep = 3;

uint64_t number_in(const char* variable, uint64_t otherwise) {
  uint64_t number = 0;
  return absl::SimpleAtoi(process_environment(variable).value_or(""), &number) ? number : otherwise;
}

void train(const RandomCase& drawn, Victim& victim, const std::shared_ptr<ProcessGroup>& group,
           bool goes_on) {
  victim.count_collectives(-1);
  Trainer trainer(group, drawn.configuration);
  if (victim.is_now(FaultMoment::kInBackward, Victim::kAnyStep)) {
    trainer.net->first->weight.register_hook(
        [&victim, &trainer, step = drawn.step](const at::Tensor&) {
          if (trainer.engine->last_result().step == step) victim.reach(FaultMoment::kInBackward);
        });
  }
  for (int step = 0; goes_on || step < kLastStep; ++step) {
    victim.count_collectives(step);
    victim.count_operators(step);
    victim.count_system_calls(FaultMoment::kSystemCall, step);
    const at::Tensor loss = trainer.loss(step);
    victim.reach(FaultMoment::kBeforeBackward, step);
    loss.backward();
    victim.reach(FaultMoment::kBeforeStep, step);
    trainer.engine->step();
  }
  victim.reach(FaultMoment::kAfterLastStep);
  victim.count_system_calls(FaultMoment::kDestruction);
}

/// A rank of the job drawn from RANDOM_KILLS_CASE. It trains until it has lost its peers or, if the
/// fault comes at the end or never (RANDOM_KILLS_NOBODY), for three steps.
void run_drawn_rank() {
  fs::current_path(fs::temp_directory_path());  // a core file would be noticed there
  std::printf("pid %d\n", ::getpid());
  std::fflush(stdout);
  const RandomCase drawn = draw_case(number_in("RANDOM_KILLS_CASE", 0));
  const bool is_fine = process_environment("RANDOM_KILLS_NOBODY").has_value();
  const bool is_victim = process_environment("RANK") == absl::StrCat(drawn.victim);
  Victim victim(drawn, is_victim && !is_fine);
  try {
    victim.reach(FaultMoment::kBeforeMeeting);
    victim.count_system_calls(FaultMoment::kMeeting);
    ProcessGroupOptions options;
    options.timeout = drawn.timeout();
    options.lane = drawn.lane;
    auto world = init_process_group(options);
    victim.reach(FaultMoment::kAfterMeeting);
    train(drawn, victim, victim.counted(world), !is_fine && !drawn.is_at_end());
    victim.reach(FaultMoment::kEngineGone);
    world.reset();
    victim.reach(FaultMoment::kGroupGone);
  } catch (const std::exception&) {
    say_with_time("told");
    throw;
  }
  say_with_time("done");
}
const RankProcessBody kDrawnRank("drawn_rank", run_drawn_rank);

std::vector<std::string> complaints(const RandomCase& drawn, const JobEnd& end) {
  return Judgement(drawn, end).complaints();
}

/// Totals over many jobs.
struct Tally {
  int jobs = 0, told = 0, done = 0, ended = 0;
  int64_t slowest_ns = 0;
  uint64_t slowest_seed = 0;

  void add(const RandomCase& drawn, const JobEnd& end) {
    ++jobs;
    const auto fault = time_of("fault", end.ranks[static_cast<size_t>(drawn.victim)].said);
    for (int rank = 0; rank < drawn.size; ++rank) {
      if (rank == drawn.victim) continue;
      const std::string& said = end.ranks[static_cast<size_t>(rank)].said;
      const auto time = time_of("told", said);
      ++(time ? told : time_of("done", said) ? done : ended);
      if (!time || !fault || drawn.needs_time_out() || *time - *fault < slowest_ns) continue;
      slowest_ns = *time - *fault;
      slowest_seed = drawn.seed;
    }
  }
};

TEST(RandomKills, EveryoneIsToldWhoBeganItAndNothingIsLeft) {
  const uint64_t first = number_in("TESSERA_RANDOM_KILLS_SEED", kDefaultSeed);
  const uint64_t count = number_in("TESSERA_RANDOM_KILLS", kDefaultCases);
  Tally tally;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const RandomCase drawn = draw_case(seed);
    const JobEnd end = DrawnJob(drawn).end();
    tally.add(drawn, end);
    const auto wrong = complaints(drawn, end);
    if (!wrong.empty()) ADD_FAILURE() << drawn << "\n" << absl::StrJoin(wrong, "\n") << "\n" << end;
  }
  if (count == kDefaultCases) return;
  std::printf(
      "%d jobs: %d survivors were told, %d came through, %d were ended by tessera-run;\n"
      "told of a death after at most %.3f s (seed %llu)\n",
      tally.jobs, tally.told, tally.done, tally.ended, static_cast<double>(tally.slowest_ns) / 1e9,
      static_cast<unsigned long long>(tally.slowest_seed));
}

// The negative controls.

RandomCase case_to_forge(bool is_launched) {
  RandomCase drawn;
  drawn.size = 3;
  drawn.is_launched = is_launched;
  drawn.victim = 1;
  drawn.fault = Fault::kKill;
  drawn.moment = FaultMoment::kBeforeStep;
  return drawn;
}

JobEnd forged_end(const RandomCase& drawn) {
  const std::string told =
      "pid 11\n\ntold at 6 ns\n[comm] all_gather #7 'vote of the step' on group 'world', rank 0: "
      "rank 1 (pid 12) died\n";
  JobEnd end;
  end.ranks = {{1, told}, {137, "pid 12\n\nfault at 5 ns\n"}, {1, told}};
  if (!drawn.is_launched) return end;
  for (JobEnd::Rank& rank : end.ranks) rank.exit_code.reset();
  end.launcher_code = 137;
  end.launcher_said =
      "tessera-run: first failure: rank 1 (pid 12) died of signal 9 (SIGKILL): rank 1 died\n";
  return end;
}

TEST(RandomKillsControl, ForgedEndsAreSeen) {
  struct Forgery {
    const char* complaint;
    std::function<void(JobEnd&)> forge;
  };
  const auto replace = [](std::string& text, const std::string& from, const std::string& to) {
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
  };
  const std::vector<Forgery> forgeries = {
      {"rank 0 names rank 2 instead of rank 1",
       [&](JobEnd& end) { replace(end.ranks[0].said, "rank 1 (pid", "rank 2 (pid"); }},
      {"rank 2 names rank 0 instead of rank 1",
       [&](JobEnd& end) { replace(end.ranks[2].said, ": rank 1", ": rank 0 of the world"); }},
      {"rank 0 names nobody",
       [&](JobEnd& end) { replace(end.ranks[0].said, "rank 1 (pid 12) died", "out of luck"); }},
      {"rank 0 says no failure", [&](JobEnd& end) { replace(end.ranks[0].said, "[comm] ", ""); }},
      {"rank 2 was not told", [&](JobEnd& end) { replace(end.ranks[2].said, "told", "tolled"); }},
      {"rank 2 came through", [&](JobEnd& end) { replace(end.ranks[2].said, "told", "done"); }},
      {"rank 1 did not do", [&](JobEnd& end) { replace(end.ranks[1].said, "fault", "fate"); }},
      {"is left: file x/y", [&](JobEnd& end) { end.files = {"x/y"}; }},
      {"is left: file store", [&](JobEnd& end) { end.files = {"store"}; }},
      {"is left: process 4711", [&](JobEnd& end) { end.processes = {"4711 ./train"}; }},
      {"the job hangs", [&](JobEnd& end) { end.hung = true; }},
  };
  for (const bool is_launched : {false, true}) {
    const RandomCase drawn = case_to_forge(is_launched);
    EXPECT_THAT(complaints(drawn, forged_end(drawn)), IsEmpty());
    for (const Forgery& forgery : forgeries) {
      JobEnd end = forged_end(drawn);
      forgery.forge(end);
      EXPECT_THAT(complaints(drawn, end), Contains(HasSubstr(forgery.complaint)));
    }
  }
}

TEST(RandomKillsControl, ForgedWordsOfTheLauncherAreSeen) {
  const RandomCase drawn = case_to_forge(/*is_launched=*/true);
  for (const char* const said :
       {"tessera-run: first failure: rank 2 (pid 12) died of signal 9 (SIGKILL)\n",
        "tessera-run: first failure: rank 1 (pid 12) exited with code 1\n",
        "tessera-run: rank 1 (pid 12) died of signal 9 (SIGKILL)\n", ""}) {
    JobEnd end = forged_end(drawn);
    end.launcher_said = said;
    EXPECT_THAT(complaints(drawn, end), Contains(HasSubstr("names another failure"))) << said;
  }
  JobEnd end = forged_end(drawn);
  end.launcher_code = 1;
  EXPECT_THAT(complaints(drawn, end), Contains(HasSubstr("with code 1 instead of 137")));
}

TEST(RandomKillsControl, AVictimThatDoesNothingIsSeen) {
  RandomCase drawn;
  while (drawn.size != 2 || drawn.is_launched || drawn.moment != FaultMoment::kBeforeStep) {
    drawn = draw_case(drawn.seed + 1);
  }
  const JobEnd end = DrawnJob(drawn, /*nobody_fails=*/true).end();
  const auto wrong = complaints(drawn, end);
  EXPECT_THAT(wrong, Contains(HasSubstr("did not do what was drawn"))) << end;
  EXPECT_THAT(wrong, Contains(HasSubstr("came through without"))) << end;
}

const RankProcessBody kStayingRank("staying_rank", [] {
  std::printf("here\n");
  std::fflush(stdout);
  ::pause();
});

TEST(RandomKillsControl, AProcessThatIsLeftIsSeen) {
  const std::string mark = absl::StrCat("RANDOM_KILLS_JOB=", ::getpid(), "-that-stays");
  {
    RankProcessOptions options;
    options.environment = {{"RANDOM_KILLS_JOB", mark.substr(mark.find('=') + 1)}};
    RankProcesses rank(1, "staying_rank", options);
    ASSERT_TRUE(rank.wait_for_output(0, "here"));
    EXPECT_THAT(processes_with(mark), Contains(HasSubstr("--rank_body=staying_rank")));
  }
  EXPECT_THAT(processes_with(mark), IsEmpty());
}

TEST(RandomKillsControl, EveryFaultIsDrawnAtEveryMoment) {
  std::map<std::pair<Fault, FaultMoment>, int> drawn_times;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    const RandomCase drawn = draw_case(seed);
    ++drawn_times[{drawn.fault, drawn.moment}];
    EXPECT_LT(drawn.victim, drawn.size);
    EXPECT_TRUE(drawn.configuration.suits(drawn.size)) << drawn;
  }
  for (int fault = 0; fault <= static_cast<int>(Fault::kTerminate); ++fault) {
    for (const FaultMoment moment : moments_of(static_cast<Fault>(fault))) {
      EXPECT_GT((drawn_times[{static_cast<Fault>(fault), moment}]), 10);
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
