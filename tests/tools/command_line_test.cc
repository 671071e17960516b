#include "tessera/tools/run/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kCores = 6;

CommandLine parse(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& inherited = {}) {
  auto result = parse_command_line(arguments, kCores, inherited);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(CommandLine{});
}

std::string problems(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& inherited = {}) {
  auto result = parse_command_line(arguments, kCores, inherited);
  EXPECT_FALSE(result.ok());
  return std::string(result.status().message());
}

TEST(CommandLineTest, FlagsEndAtTheProgram) {
  const CommandLine line = parse({"--standalone", "--nproc-per-node", "3", "--grace-seconds=0.5",
                                  "./train", "--help", "--", "x"});
  EXPECT_EQ(line.worker_count, 3);
  EXPECT_EQ(line.grace_ms, 500);
  EXPECT_FALSE(line.help);
  EXPECT_THAT(line.program, ElementsAre("./train", "--help", "--", "x"));
}

TEST(CommandLineTest, TwoDashesEndTheFlags) {
  EXPECT_THAT(parse({"--nproc-per-node=2", "--", "--odd", "-n"}).program,
              ElementsAre("--odd", "-n"));
}

TEST(CommandLineTest, DefaultsAndTorchrunSpelling) {
  const CommandLine line = parse({"train"});
  EXPECT_EQ(line.worker_count, 1);
  EXPECT_EQ(line.grace_ms, 20000);
  EXPECT_EQ(parse({"--nproc_per_node", "4", "--nnodes=1", "train"}).worker_count, 4);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "train"}).worker_count, kCores);
}

TEST(CommandLineTest, CountsAreReadStrictly) {
  for (const char* value : {"0", "-1", "+1", "1x", " 1", "1 ", "", "1.5", "4097", "99999999999"}) {
    EXPECT_EQ(problems({std::string("--nproc-per-node=") + value, "train"}),
              std::string("--nproc-per-node: got '") + value +
                  "', expected an integer from 1 to 4096, 'auto' or 'gpu'");
  }
  for (const char* value : {"-1", "nan", "inf", "", "1s", "1e3", "86401", "1.2.3"}) {
    EXPECT_EQ(problems({std::string("--grace-seconds=") + value, "train"}),
              std::string("--grace-seconds: got '") + value +
                  "', expected a number of seconds from 0 to 86400");
  }
}

TEST(CommandLineTest, AllProblemsAreListed) {
  EXPECT_EQ(problems({"--nproc-per-node=x", "--what=1", "--standalone=yes", "--standalone",
                      "--grace-seconds"}),
            "--nproc-per-node: got 'x', expected an integer from 1 to 4096, 'auto' or 'gpu'\n"
            "unknown flag --what\n"
            "--standalone takes no value\n"
            "--standalone is given twice\n"
            "--grace-seconds needs a value\n"
            "no program is given");
  EXPECT_EQ(problems({""}), "the name of the program is empty");
}

TEST(CommandLineTest, WhatNeedsSeveralHostsIsRefusedByName) {
  for (const char* flag : {"--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
                           "--rdzv-conf", "--master-addr", "--master-port", "--local-addr"}) {
    const std::string text = problems({flag, "value", "train"});
    EXPECT_THAT(text, HasSubstr(std::string(flag) + " value is refused: one host only"));
    EXPECT_THAT(text, HasSubstr("mpirun or srun"));
  }
  for (const char* value : {"2", "1:4", "0"}) {
    EXPECT_THAT(problems({"--nnodes", value, "train"}), HasSubstr("is refused: one host only"));
  }
}

TEST(CommandLineTest, RestartsAndTheirPause) {
  EXPECT_EQ(parse({"train"}).max_restarts, 0);
  EXPECT_EQ(parse({"train"}).backoff_ms, 1000);
  const CommandLine line = parse({"--max_restarts=3", "--backoff-seconds", "0.25", "train"});
  EXPECT_EQ(line.max_restarts, 3);
  EXPECT_EQ(line.backoff_ms, 250);
  for (const char* value : {"-1", "", "1.5", "99999999999"}) {
    EXPECT_EQ(problems({std::string("--max-restarts=") + value, "train"}),
              std::string("--max-restarts: got '") + value +
                  "', expected a whole number of restarts, from 0");
  }
}

TEST(CommandLineTest, AHeartbeatTimeoutIsOffUnlessGiven) {
  EXPECT_EQ(parse({"train"}).heartbeat_ms, 0);
  EXPECT_EQ(parse({"--heartbeat-timeout=30", "train"}).heartbeat_ms, 30000);
  EXPECT_EQ(parse({"--heartbeat_timeout", "0.5", "train"}).heartbeat_ms, 500);
  EXPECT_EQ(parse({"train"}, {"PET_HEARTBEAT_TIMEOUT=7"}).heartbeat_ms, 7000);
  EXPECT_EQ(problems({"--heartbeat-timeout=soon", "train"}),
            "--heartbeat-timeout: got 'soon', expected a number of seconds from 0 to 86400");
}

TEST(CommandLineTest, AStatusIsOfAJobThatRunsAndStartsNone) {
  EXPECT_FALSE(parse({"train"}).status);
  EXPECT_TRUE(parse({"--status"}).status);
  EXPECT_FALSE(parse({"--status"}).status_job.has_value());
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--status", "4711", "--json"},
        {"--json", "--status", "4711"},
        {"--status", "--json", "--", "4711"}}) {
    const CommandLine line = parse(arguments);
    EXPECT_TRUE(line.status && line.json);
    EXPECT_EQ(line.status_job, 4711);
    EXPECT_TRUE(line.program.empty());
  }
  EXPECT_TRUE(parse({"--status"}, {"PET_NNODES=4"}).status) << "variables are of other jobs";
  EXPECT_THAT(parse({"train", "--status"}).program, ElementsAre("train", "--status"));
  for (const char* job : {"0", "-", "4711x", "train", "99999999999"}) {
    EXPECT_EQ(problems({"--status", job}),
              std::string("--status: got '") + job +
                  "', expected the pid of a launcher, as in --status 4711");
  }
  EXPECT_EQ(problems({"--status", "1", "2"}), "--status takes one job");
  EXPECT_EQ(problems({"--status", "--nproc-per-node=2", "--heartbeat-timeout=1"}),
            "--heartbeat-timeout and --status: got both, expected one of them\n"
            "--nproc-per-node and --status: got both, expected one of them");
  EXPECT_EQ(problems({"--json", "train"}), "--json goes with --status");
}

TEST(CommandLineTest, StreamsIntoFilesAreOfAllRanksOrOfSingleOnes) {
  const std::vector<std::string> flags = {"--nproc-per-node=3", "--log-dir=/logs"};
  const auto with = [&flags](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    more.emplace_back("train");
    return more;
  };
  const CommandLine all = parse(with({"-r", "3", "-t", "1"}));
  EXPECT_EQ(all.log_dir, "/logs");
  EXPECT_THAT(all.redirects, ElementsAre(3, 3, 3));
  EXPECT_THAT(all.tees, ElementsAre(1, 1, 1));
  const CommandLine single = parse(with({"--tee", "0:3,2:1"}));
  EXPECT_THAT(single.redirects, ElementsAre(0, 0, 0));
  EXPECT_THAT(single.tees, ElementsAre(3, 0, 1));
  for (const char* value : {"4", "", "3:1", "0:4", "0:1,", "a:1", "0"}) {
    if (value == std::string("0")) {
      EXPECT_THAT(parse(with({"--tee=0"})).tees, ElementsAre(0, 0, 0)) << "the control";
      continue;
    }
    EXPECT_EQ(problems(with({std::string("--tee=") + value})),
              std::string("--tee: got '") + value +
                  "', expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list of ranks "
                  "from 0 to 2 as in 0:3,1:1");
  }
  EXPECT_EQ(problems({"--tee=3", "train"}), "--tee needs --log-dir, the directory for the files");
}

TEST(CommandLineTest, VariablesOfTorchrunStandForFlagsThatAreNotThere) {
  const std::vector<std::string> inherited = {
      "PET_MAX_RESTARTS=4", "PET_NPROC_PER_NODE=3", "PET_LOG_DIR=/logs",     "PET_TEE=2",
      "PET_NNODES=1",       "PET_GRACE_SECONDS=7",  "PET_RDZV_BACKEND=c10d", "PET_MASTER_ADDR=a"};
  const CommandLine line = parse({"--max-restarts=2", "train"}, inherited);
  EXPECT_EQ(line.max_restarts, 2) << "the flag wins";
  EXPECT_EQ(line.worker_count, 3);
  EXPECT_EQ(line.grace_ms, 7000);
  EXPECT_EQ(line.log_dir, "/logs");
  EXPECT_THAT(line.tees, ElementsAre(2, 2, 2));
  EXPECT_EQ(parse({"train"}, {"PET_MAX_RESTARTS="}).max_restarts, 0);
  EXPECT_EQ(problems({"train"}, {"PET_MAX_RESTARTS=x"}),
            "PET_MAX_RESTARTS: got 'x', expected a whole number of restarts, from 0");
}

TEST(CommandLineTest, ANodeOfSeveralStartsNoJob) {
  for (const char* nodes : {"1", "1:1", ""}) {
    parse({"train"}, {std::string("PET_NNODES=") + nodes});
  }
  for (const char* nodes : {"2", "1:4"}) {
    EXPECT_THAT(problems({"train"}, {std::string("PET_NNODES=") + nodes}),
                HasSubstr(std::string("PET_NNODES: got '") + nodes + "', expected 1 or none"));
  }
  EXPECT_EQ(parse({"--nnodes=1", "train"}, {"PET_NNODES=2"}).worker_count, 1) << "the flag wins";
}

TEST(CommandLineTest, ACommandThatIsSupervisedKeepsTheVariables) {
  const CommandLine line = parse({"--supervise", "--max-restarts=2", "--", "torchrun", "-x"},
                                 {"PET_NNODES=2", "PET_NPROC_PER_NODE=8", "PET_MAX_RESTARTS=9"});
  EXPECT_TRUE(line.supervise);
  EXPECT_EQ(line.worker_count, 1);
  EXPECT_EQ(line.max_restarts, 2);
  EXPECT_THAT(line.program, ElementsAre("torchrun", "-x"));
  EXPECT_THAT(problems({"--supervise", "--nproc-per-node=2", "train"}), HasSubstr("got both"));
}

TEST(CommandLineTest, ARankForEachGpu) {
  EXPECT_EQ(parse({"--nproc-per-node=gpu", "train"}, {"CUDA_VISIBLE_DEVICES=3,5,1"}).worker_count,
            3);
  EXPECT_THAT(problems({"--nproc-per-node=gpu", "train"}, {"CUDA_VISIBLE_DEVICES="}),
              HasSubstr("--nproc-per-node: got 'gpu', expected a GPU that this process may use"));
}

TEST(CommandLineTest, HelpNeedsNoProgramAndNamesEveryFlag) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"--unknown", "-h"}).help);
  for (const char* flag : {"--standalone", "--nproc-per-node N|auto", "--grace-seconds S",
                           "--nnodes 1", "--max-restarts N", "--supervise", "--help"}) {
    EXPECT_THAT(help_text(), HasSubstr(flag));
  }
  EXPECT_THAT(help_text(), ::testing::Not(HasSubstr("--rdzv-id")));
}

}  // namespace
}  // namespace tessera::internal
