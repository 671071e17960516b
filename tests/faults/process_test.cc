#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/environment.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/killing_group.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/rank_processes.h"

// Ranks that are real processes, one of which dies of SIGKILL at a chosen point of its second step:
// the others report it by name and end.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void die() { ::kill(::getpid(), SIGKILL); }

/// Trains until it is killed or loses its peers. FAULT_POINT says where FAULT_RANK dies.
void train_and_die() {
  const std::string point = process_environment("FAULT_POINT").value_or("");
  ProcessGroupOptions options;
  options.timeout = kGroupTimeout;
  auto world = init_process_group(options);
  const bool is_victim =
      absl::StrCat(world->rank()) == process_environment("FAULT_RANK").value_or("");
  std::string deadly_tag;
  const Configuration configuration =
      configuration_called(process_environment("FAULT_CONFIGURATION").value_or(""));
  const bool is_split = configuration.splits_parameters();
  if (is_victim && point == "reduction") deadly_tag = is_split ? "first" : "bucket 1";
  if (is_victim && point == "gather") deadly_tag = "second";
  if (is_victim && point == "full_parameters") deadly_tag = "full_parameters";
  if (is_victim && point == "vote") deadly_tag = "vote of the step";
  if (is_victim && point == "updates") deadly_tag = "bucket 0";
  auto group = std::make_shared<KillingGroup>(world);
  Trainer trainer(group, configuration);

  trainer.train(0);
  std::printf("made a step\n");
  std::fflush(stdout);
  if (point == "gather" || point == "full_parameters") group->die_in(deadly_tag);
  if (point == "full_parameters" || point == "full_scope") {
    const auto whole = trainer.engine->full_parameters();
    if (is_victim) die();
  }
  if (point == "join") {  // the others have no batches and follow
    std::vector<int> batches;
    if (is_victim) batches = {1, 2};
    for (const int batch : trainer.engine->join(batches)) {
      if (batch == 2) die();
      trainer.train(batch);
    }
  }
  const at::Tensor loss = trainer.loss(1);
  if (is_victim && point == "forward") die();
  if (is_victim && point == "exit") std::quick_exit(0);
  if (is_victim && point == "exception") throw std::runtime_error("out of data");
  if (point != "updates") group->die_in(deadly_tag);
  if (is_victim && point == "hook") {
    trainer.net->first->weight.register_hook([](const at::Tensor&) { die(); });
  }
  loss.backward();
  if (is_victim && point == "between") die();
  if (point == "updates") group->die_in(deadly_tag);
  trainer.engine->step();
  trainer.train(2);  // reaches what the last step's all-gather left waiting
  std::printf("still alive\n");
}
const RankProcessBody kTrainAndDie("train_and_die", train_and_die);

struct Death {
  std::string point;
  Configuration configuration;
  int size;
  int victim;
};

std::vector<Death> deaths() {
  std::vector<Death> all;
  for (const std::string point : {"forward", "hook", "reduction", "between", "vote"}) {
    for (const Configuration& configuration : named_configurations()) {
      if (configuration.strategy == Strategy::kDdp) all.push_back({point, configuration, 2, 1});
      all.push_back({point, configuration, 3, point == "vote" ? 0 : 1});
    }
  }
  all.push_back({"updates", configuration_of(Strategy::kZero1), 3, 2});
  all.push_back({"updates", configuration_of(Strategy::kZero2), 2, 0});
  for (const std::string point : {"gather", "full_parameters", "full_scope"}) {
    all.push_back({point, configuration_of(Strategy::kZero3), 3, 1});
    all.push_back({point, configuration_of(Strategy::kZero3), 2, 0});
  }
  for (const std::string point : {"gather", "reduction", "vote"}) {
    all.push_back({point, hybrid(2, 2, 2), 4, 3});
  }
  all.push_back({"gather", resharding(1), 3, 2});
  all.push_back({"join", configuration_of(Strategy::kZero1), 3, 1});
  all.push_back({"join", configuration_of(Strategy::kZero3), 3, 2});
  return all;
}

class DeadRank : public ::testing::TestWithParam<Death> {};
INSTANTIATE_TEST_SUITE_P(Faults, DeadRank, ::testing::ValuesIn(deaths()), [](const auto& info) {
  return absl::StrCat(info.param.point, "_", info.param.configuration.name, "_", info.param.size);
});

RankProcessOptions job(const std::string& point, const Configuration& configuration, int victim) {
  RankProcessOptions options;
  options.environment = {{"FAULT_POINT", point},
                         {"FAULT_RANK", absl::StrCat(victim)},
                         {"FAULT_CONFIGURATION", configuration.name}};
  return options;
}

/// Waits until all have ended, which no time-out of a group helps them to.
std::vector<RankResult> wait_for_end(RankProcesses& ranks) {
  std::vector<RankResult> results = ranks.wait();
  for (const RankResult& result : results) EXPECT_FALSE(result.timed_out) << result.output;
  return results;
}

TEST_P(DeadRank, IsNamedByTheSurvivors) {
  const auto& [point, configuration, size, victim] = GetParam();
  RankProcesses ranks(size, "train_and_die", job(point, configuration, victim));
  const pid_t victim_pid = ranks.pid(victim);
  const auto results = wait_for_end(ranks);
  for (int rank = 0; rank < size; ++rank) {
    SCOPED_TRACE(::testing::Message() << "rank " << rank);
    EXPECT_THAT(results[rank].output, HasSubstr("made a step"));
    EXPECT_THAT(results[rank].output, Not(HasSubstr("still alive")));
    if (rank == victim) {
      EXPECT_EQ(results[rank].exit_code, 128 + SIGKILL);
    } else {
      EXPECT_EQ(results[rank].exit_code, 1);
      EXPECT_THAT(results[rank].output,
                  HasSubstr(absl::StrCat("rank ", victim, " (pid ", victim_pid, ") died")));
      EXPECT_THAT(results[rank].output, HasSubstr("[comm] "));
    }
  }
}

// The negative control: nobody dies, everybody ends well.
TEST(ProcessFaults, NobodyDies) {
  for (const Configuration& configuration :
       {configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3)}) {
    RankProcesses ranks(3, "train_and_die", job("nowhere", configuration, 0));
    for (const RankResult& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
      EXPECT_THAT(result.output, HasSubstr("still alive"));
    }
  }
}

TEST(ProcessFaults, ExceptionInForward) {
  for (const int size : {2, 3}) {
    const int victim = size - 1;
    RankProcesses ranks(size, "train_and_die",
                        job("exception", configuration_of(Strategy::kDdp), victim));
    const auto results = wait_for_end(ranks);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(results[rank].exit_code, 1);
      EXPECT_THAT(results[rank].output,
                  HasSubstr(rank == victim ? std::string("out of data")
                                           : absl::StrCat("rank ", victim,
                                                          " left while an "
                                                          "exception unwound")));
    }
  }
}

/// Waits until the process has ended.
void await_end_of(const std::string& pid) {
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(pid), 0)));
  pollfd handle{process.get(), POLLIN, 0};
  if (process.is_open()) {
    ASSERT_EQ(::poll(&handle, 1, -1), 1);
  }
}

/// All ranks begin a barrier. Rank 1 dies after it, rank 2 fails the world by missing rank 1 in a
/// second one, and only then does rank 0 look at the first.
void look_late() {
  ProcessGroupOptions options;
  options.timeout = kGroupTimeout;
  options.lane = ProcessGroupOptions::Lane::kInline;
  const auto world = init_process_group(options);
  const auto pids = world->all_gather_bytes(absl::StrCat(::getpid()), "pids");
  const auto first = world->check_and_run({.op = Op::kBarrier, .tag = "first"});
  if (world->rank() != 0) {
    first->wait();
    if (world->rank() == 1) die();
    world->barrier("second");
  }
  await_end_of(pids[2]);
  first->wait();
  std::printf("ended well\n");
  world->barrier("third");
}
const RankProcessBody kLookLate("look_late", look_late);

TEST(ProcessFaults, ACallThatHadAllItNeededEndsWellAfterADeath) {
  RankProcesses ranks(3, "look_late");
  const auto results = wait_for_end(ranks);
  EXPECT_THAT(results[0].output, HasSubstr("ended well"));
  EXPECT_THAT(results[0].output, HasSubstr("'third' on group"));
  EXPECT_THAT(results[2].output, HasSubstr("'second' on group"));
  for (const int rank : {0, 2}) EXPECT_THAT(results[rank].output, HasSubstr("rank 1 (pid "));
}

// exit(0) in the middle of training is a death like any other.
TEST(ProcessFaults, ExitInTheMiddle) {
  RankProcesses ranks(3, "train_and_die", job("exit", configuration_of(Strategy::kZero1), 1));
  const auto results = wait_for_end(ranks);
  EXPECT_EQ(results[1].exit_code, 0);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].output, HasSubstr("rank 1 (pid "));
  }
}

/// Runs a job under tessera-run, both streams in `output`; returns its exit code.
int run_under_launcher(int size, const std::string& environment, std::string& output) {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      absl::StrCat(environment, " ", (own.parent_path() / "tessera-run").string(),
                   " --standalone --nproc-per-node ", size, " -- ", own.string(),
                   " --rank_body=train_and_die 2>&1");
  FILE* stream = ::popen(command.c_str(), "r");
  if (stream == nullptr) return -1;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), stream)) {
    output.append(buffer, count);
  }
  const int status = ::pclose(stream);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessFaults, LauncherNamesTheDeadRankAndReturnsItsCode) {
  for (const std::string point : {"forward", "reduction", "vote"}) {
    SCOPED_TRACE(point);
    std::string output;
    const int code = run_under_launcher(
        3, absl::StrCat("FAULT_POINT=", point, " FAULT_RANK=1 FAULT_CONFIGURATION=zero2"), output);
    EXPECT_EQ(code, 128 + SIGKILL) << output;
    EXPECT_THAT(output, HasSubstr("first failure: rank 1 "));
    EXPECT_THAT(output, HasSubstr("died of signal 9 (SIGKILL)"));
  }
}

TEST(ProcessFaults, LauncherNamesTheRankWithTheException) {
  std::string output;
  const int code =
      run_under_launcher(2, "FAULT_POINT=exception FAULT_RANK=1 FAULT_CONFIGURATION=ddp", output);
  EXPECT_EQ(code, 1) << output;
  EXPECT_THAT(output, HasSubstr("out of data"));
}

TEST(ProcessFaults, LauncherReturnsZeroWhenNobodyDies) {
  std::string output;
  const int code =
      run_under_launcher(2, "FAULT_POINT=nowhere FAULT_RANK=1 FAULT_CONFIGURATION=zero1", output);
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, Not(HasSubstr("first failure")));
}

}  // namespace
}  // namespace tessera::internal::testing
