#include "tessera/tools/run/job_status.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/tools/run/heartbeats.h"
#include "tessera/tools/run/status_table.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using State = RankStatus::State;

constexpr int kFirstPid = 1000000;
constexpr int64_t kSecond_ns = 1'000'000'000;

/// A job of three ranks that are made up: their pids are 1000000 and so on, or all are `pid`.
class MadeUpJob {
 public:
  explicit MadeUpJob(int pid = 0) : pid_(pid) {
    for (int rank = 0; rank < 3; ++rank) {
      page_->note_begin(rank, pid_of(rank));
      processes_[kFirstPid + rank] = 'S';
    }
  }

  JobPage& page() { return *page_; }
  RankProgress& open(int rank) {
    auto& opened = ranks_[static_cast<size_t>(rank)];
    if (opened == nullptr) opened = JobPage::open(page_->address(), rank, pid_of(rank));
    return opened->own_progress();
  }
  void set_process(int rank, char state) { processes_[kFirstPid + rank] = state; }
  JobStatus status(int64_t now_ns = monotonic_ns()) {
    return read_status(*page_, now_ns, [this](int pid) {
      const auto found = processes_.find(pid);
      return found == processes_.end() ? '\0' : found->second;  // this process is no rank's
    });
  }

 private:
  int pid_of(int rank) const { return pid_ == 0 ? kFirstPid + rank : pid_; }

  const int pid_;
  std::unique_ptr<JobPage> page_ = *JobPage::create(3);
  std::vector<std::unique_ptr<JobPage>> ranks_{3};
  std::map<int, char> processes_;
};

void wait_for(RankProgress& rank, std::vector<int> ranks, const char* call = "barrier #2 on 'w'") {
  rank.note_wait(monotonic_ns(), call, "w", 2, ranks);
}

TEST(JobStatus, TellsWhatEachRankDoes) {
  MadeUpJob job;
  EXPECT_EQ(describe_state(job.status(), 0), "starting (no process group yet)");
  job.open(0);
  EXPECT_EQ(describe_state(job.status(), 0), "starting (no process group yet)");
  job.open(0).note_life();
  EXPECT_EQ(describe_state(job.status(), 0), "running");
  job.open(0).note_phase(Phase::kBackward);
  EXPECT_EQ(describe_state(job.status(), 0), "running (backward)");
  job.set_process(0, 'T');
  EXPECT_EQ(describe_state(job.status(), 0), "stopped (backward)");
  wait_for(job.open(0), {1});
  EXPECT_EQ(describe_state(job.status(), 0), "stopped, in barrier #2 on 'w'");
  job.page().note_end(0, 3 << 8);
  EXPECT_EQ(describe_state(job.status(), 0), "gone (exited with code 3)");
  job.open(1).note_step(3);
  EXPECT_EQ(describe_state(job.status(), 1), "running (in no process group)");
  job.set_process(2, 'Z');
  EXPECT_EQ(describe_state(job.status(), 2), "gone");
}

TEST(JobStatus, ARankThatSaysNothingIsSilentUnlessItNeedNot) {
  MadeUpJob job;
  job.open(0).note_life();
  job.open(0).note_phase(Phase::kForward);
  job.open(1).note_step(5);
  const JobStatus later = job.status(monotonic_ns() + 20 * kSecond_ns);
  EXPECT_EQ(later.ranks[0].state, State::kSilent);
  EXPECT_THAT(describe_state(later, 0), StartsWith("silent for 2"));
  EXPECT_THAT(describe_state(later, 0), HasSubstr(" s (forward)"));
  EXPECT_EQ(later.ranks[1].state, State::kRunning) << "it is in no group";
  EXPECT_EQ(later.ranks[2].state, State::kStarting);
}

/// What rank 0 waits for, without how long.
std::string wait_of_rank_0(MadeUpJob& job) {
  const std::string text = describe_state(job.status(), 0);
  return text.substr(text.find(" in "));
}

TEST(JobStatus, AWaitNamesTheWholeTruth) {
  MadeUpJob job;
  wait_for(job.open(0), {1});
  EXPECT_EQ(wait_of_rank_0(job),
            " in barrier #2 on 'w' for rank 1, which has made no process group");
  job.open(1).note_life();
  job.open(1).note_phase(Phase::kForward);
  EXPECT_EQ(wait_of_rank_0(job), " in barrier #2 on 'w' for rank 1, which runs (forward)");
  wait_for(job.open(1), {2}, "recv 'x' #3 on 'v'");
  job.set_process(2, 't');
  EXPECT_EQ(wait_of_rank_0(job),
            " in barrier #2 on 'w' for rank 1, which waits in recv 'x' #3 on 'v' for rank 2, "
            "which is stopped");
  job.page().note_end(2, 9);
  EXPECT_THAT(wait_of_rank_0(job),
              HasSubstr(" for rank 2, which is gone (died of signal 9 (SIGKILL))"));
  wait_for(job.open(0), {1, 2});
  EXPECT_THAT(wait_of_rank_0(job), HasSubstr(", and rank 2, which is gone"));
}

TEST(JobStatus, RanksThatWaitForEachOtherAreToldOnce) {
  MadeUpJob job;
  wait_for(job.open(0), {1}, "a");
  wait_for(job.open(1), {0}, "b");
  EXPECT_EQ(wait_of_rank_0(job),
            " in a for rank 1, which waits in b for rank 0, which waits itself");
  wait_for(job.open(0), {0}, "a");
  EXPECT_EQ(wait_of_rank_0(job), " in a for rank 0, which waits itself");
}

TEST(JobStatus, RanksThatThereAreNotAreNotLookedUp) {
  MadeUpJob job;
  wait_for(job.open(0), {-7, 3, 1 << 30});
  EXPECT_EQ(wait_of_rank_0(job),
            " in barrier #2 on 'w' for rank -7, and rank 3, and rank 1073741824");
  wait_for(job.open(0), {});
  EXPECT_EQ(wait_of_rank_0(job), " in barrier #2 on 'w'") << "it is not known for whom";
  wait_for(job.open(0), std::vector<int>(100, 3));
  EXPECT_THAT(wait_of_rank_0(job), HasSubstr(" and rank 3, and 96 more"));
}

/// A rank whose steps took so long, of which it waited for others the rest.
RankStatus rank_of(int rank, double ratio) {
  RankStatus status;
  status.rank = rank;
  status.pid = 4712 + rank;
  status.state = State::kRunning;
  status.phase = Phase::kForward;
  status.step = 137;
  status.step_age_s = 0.25;
  status.steps_per_s = 2.3456;
  status.ratio = ratio;
  status.silent_s = 0.01;
  return status;
}

JobStatus three_ranks() {
  JobStatus status;
  status.outline.restart_count = 1;
  status.outline.max_restarts = 3;
  status.saved_step = 100;
  status.age_s = 754;
  status.ranks = {rank_of(0, 1.0), rank_of(1, 2.96), rank_of(2, 0.994)};
  status.ranks[0].state = State::kWaiting;
  status.ranks[0].wait = LongWait{.since_ns = 1,
                                  .call = "barrier #20 on group 'world'",
                                  .group = "world",
                                  .number = 20,
                                  .ranks = {1, 2},
                                  .awaited = 2};
  status.ranks[0].wait_s = 12.34;
  RankStatus& gone = status.ranks[2];
  gone = RankStatus();
  gone.rank = 2;
  gone.state = State::kGone;
  gone.exit_status = ExitStatus(9);
  return status;
}

TEST(StatusTable, HasALineForEachRank) {
  EXPECT_EQ(status_table({4711, "tessera-run --nproc-per-node 3 ./train", nullptr}, three_ranks()),
            "job 4711: tessera-run --nproc-per-node 3 ./train\n"
            "running for 12 min 34 s, restart 1, saved step 100\n"
            "\n"
            " rank       pid      step    last step  steps/s  ratio  state\n"
            "    0      4712       137    0.2 s ago     2.35   1.00  waiting 12.3 s in barrier #20 "
            "on group 'world' for rank 1, which runs (forward), and rank 2, which is gone (died of "
            "signal 9 (SIGKILL))\n"
            "    1      4713       137    0.2 s ago     2.35   2.96  running (forward)\n"
            "    2         -         -            -        -      -  gone (died of signal 9 "
            "(SIGKILL))\n");
}

TEST(StatusTable, TheObjectHasTheSame) {
  const std::string text = status_json({4711, "./a \"b\"", nullptr}, three_ranks());
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json["job"], 4711);
  EXPECT_EQ(json["program"], "./a \"b\"");
  EXPECT_EQ(json["restart"], 1);
  EXPECT_EQ(json["saved_step"], 100);
  ASSERT_EQ(json["ranks"].size(), 3u);
  const nlohmann::json& waiting = json["ranks"][0];
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["phase"], "forward");
  EXPECT_EQ(waiting["step"], 137);
  EXPECT_DOUBLE_EQ(waiting["steps_per_second"], 2.3456);
  EXPECT_EQ(waiting["wait"]["group"], "world");
  EXPECT_EQ(waiting["wait"]["number"], 20);
  EXPECT_THAT(waiting["wait"]["ranks"].get<std::vector<int>>(), ElementsAre(1, 2));
  EXPECT_TRUE(waiting["exit_code"].is_null());
  EXPECT_EQ(json["ranks"][1]["straggler_ratio"], 2.96);
  EXPECT_TRUE(json["ranks"][1]["wait"].is_null());
  EXPECT_EQ(json["ranks"][2]["exit_code"], 137);
  EXPECT_TRUE(json["ranks"][2]["straggler_ratio"].is_null());
}

TEST(StatusTable, DurationsAreShort) {
  EXPECT_EQ(duration_text(0.05), "0.0 s");
  EXPECT_EQ(duration_text(99.99), "99.9 s");
  EXPECT_EQ(duration_text(100), "1 min 40 s");
  EXPECT_EQ(duration_text(7500), "2 h 5 min");
  EXPECT_EQ(duration_text(1e300), "long");
}

/// Ends `steps` steps of each rank: those of rank r take `own_ns[r]` without waits, and all of them
/// as long as the longest.
TEST(JobStatus, TheRatioIsOwnTimeOverTheMedian) {
  MadeUpJob job;
  EXPECT_FALSE(job.status().ranks[0].ratio.has_value());
  for (int rank = 0; rank < 3; ++rank) job.open(rank).note_step_end(0);
  // Nobody waits but for what is said: the wall time is the clock's, and so small that it counts as
  // own time on ranks that see no waits.
  for (int rank = 0; rank < 3; ++rank) job.open(rank).note_step_end(rank == 2 ? -1 : 0);
  const JobStatus status = job.status();
  ASSERT_TRUE(status.ranks[0].own_s.has_value() && status.ranks[1].own_s.has_value());
  EXPECT_FALSE(status.ranks[2].ratio.has_value()) << "it does not see its waits";
  const double smaller = std::min(*status.ranks[0].own_s, *status.ranks[1].own_s);
  EXPECT_DOUBLE_EQ(*status.ranks[0].ratio, *status.ranks[0].own_s / smaller);
  EXPECT_DOUBLE_EQ(*status.ranks[1].ratio, *status.ranks[1].own_s / smaller);
}

// --- Who is frozen ---

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The clock of a launcher that looks every second.
class Looks {
 public:
  explicit Looks(JobPage& page, seconds timeout) : heartbeats_(page, timeout, now_) {}
  std::optional<Silence> after(milliseconds time) {
    now_ += time;
    return heartbeats_.look(now_);
  }

 private:
  Heartbeats::Clock::time_point now_{seconds(1000)};
  Heartbeats heartbeats_;
};

TEST(Heartbeats, ARankThatSaysNothingForTheTimeOutIsFrozen) {
  MadeUpJob job(::getpid());
  Looks looks(job.page(), seconds(20));
  job.open(1).note_life();
  job.open(1).note_step(137);
  job.open(1).note_phase(Phase::kBackward);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(looks.after(seconds(1)).has_value()) << i;
  const auto found = looks.after(seconds(1));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 1) << "the others have not begun";
  EXPECT_THAT(found->text, StartsWith("is killed, as it has begun and finished nothing for 20 s "
                                      "(--heartbeat-timeout): it "));
  EXPECT_THAT(found->text, HasSubstr(", in phase backward, after step 137"));
}

TEST(Heartbeats, OneThatGoesOnOrRestsOrHasEndedIsNot) {
  MadeUpJob job(::getpid());
  Looks looks(job.page(), seconds(10));
  job.open(0).note_life();
  job.open(1).note_life();
  job.open(2).note_life();
  EXPECT_FALSE(looks.after(seconds(1)).has_value());
  job.open(1).note_rest();
  job.page().note_end(2, 0);
  for (int i = 0; i < 20; ++i) {
    const int64_t before = job.open(0).life_ns();
    while (job.open(0).life_ns() == before) job.open(0).note_life();  // the clock is coarse
    EXPECT_FALSE(looks.after(seconds(1)).has_value()) << i;
  }
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(looks.after(seconds(1)).has_value()) << i;
  EXPECT_TRUE(looks.after(seconds(1)).has_value()) << "the control";
}

TEST(Heartbeats, AScriptThatOutlivesItsProgramIsNot) {
  MadeUpJob job;  // no such process
  Looks looks(job.page(), seconds(10));
  job.open(0).note_life();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(looks.after(seconds(1)).has_value()) << i;
}

TEST(Heartbeats, APauseOfTheLauncherItselfDoesNotCount) {
  MadeUpJob job(::getpid());
  Looks looks(job.page(), seconds(10));
  job.open(0).note_life();
  EXPECT_FALSE(looks.after(seconds(1)).has_value());
  EXPECT_FALSE(looks.after(seconds(86400)).has_value()) << "it has slept as long as they";
  EXPECT_FALSE(looks.after(milliseconds(1)).has_value()) << "between two looks";
}

TEST(Heartbeats, TheLongestSilenceIsNamed) {
  MadeUpJob job(::getpid());
  Looks looks(job.page(), seconds(10));
  job.open(2).note_life();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(looks.after(seconds(1)).has_value());
  job.open(0).note_life();
  job.open(1).note_life();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(looks.after(seconds(1)).has_value());
  EXPECT_EQ(looks.after(seconds(1)).value().rank, 2);
}

}  // namespace
}  // namespace tessera::internal
