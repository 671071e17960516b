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

CommandLine parse(const std::vector<std::string>& arguments) {
  auto result = parse_command_line(arguments, kCores);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(CommandLine{});
}

std::string problems(const std::vector<std::string>& arguments) {
  auto result = parse_command_line(arguments, kCores);
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
                  "', expected an integer from 1 to 4096 or 'auto'");
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
            "--nproc-per-node: got 'x', expected an integer from 1 to 4096 or 'auto'\n"
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
  EXPECT_THAT(problems({"--max-restarts=3", "train"}), HasSubstr("not built yet"));
}

TEST(CommandLineTest, HelpNeedsNoProgramAndNamesEveryFlag) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"--unknown", "-h"}).help);
  for (const char* flag :
       {"--standalone", "--nproc-per-node N|auto", "--grace-seconds S", "--nnodes 1", "--help"}) {
    EXPECT_THAT(help_text(), HasSubstr(flag));
  }
  EXPECT_THAT(help_text(), ::testing::Not(HasSubstr("--rdzv-id")));
}

}  // namespace
}  // namespace tessera::internal
