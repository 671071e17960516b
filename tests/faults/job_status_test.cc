#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/environment.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/tools/launched_job.h"

// What an engine tells of its steps to tessera-run --status.
namespace tessera::internal::testing {
namespace {

/// Trains until the test has made a file.
const RankProcessBody kTrainsOn("status_trains_on", [] {
  auto world = init_process_group();
  Trainer trainer(world, configuration_of(Strategy::kZero2));
  const std::string told = process_environment("TMPDIR").value_or("") + "/over";
  bool is_over = false;
  for (int step = 0; !is_over; ++step) {
    trainer.train(step);
    const bool sees = world->rank() == 0 && std::filesystem::exists(told);
    is_over = world->all_gather_bytes(sees ? "over" : "", "over").front() == "over";
  }
});

TEST(JobStatus, AnEngineTellsItsStepsItsPaceAndItsPhase) {
  const TemporaryDirectory tmp;
  LaunchedJob job(
      {"--nproc-per-node=2", "--", std::filesystem::read_symlink("/proc/self/exe").string(),
       "--rank_body=status_trains_on"},
      {{"TMPDIR", tmp.path()}});
  std::set<std::string> phases;
  bool has_pace = false;
  int64_t most_steps = 0;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline && (phases.size() < 2 || !has_pace)) {
    LaunchedJob status({"--status", absl::StrCat(job.pid()), "--json"});
    if (status.wait() != 0) continue;
    const auto json = nlohmann::json::parse(status.out(), nullptr, /*allow_exceptions=*/false);
    for (const auto& rank : json["ranks"]) {
      const std::string phase = rank["phase"];
      if (!phase.empty()) phases.insert(phase);
      most_steps = std::max(most_steps, rank["step"].get<int64_t>());
      has_pace = has_pace || (rank["straggler_ratio"].is_number() &&
                              rank["steps_per_second"].is_number() && !rank["phase"].empty());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(has_pace);
  EXPECT_GE(most_steps, 2);
  EXPECT_GE(phases.size(), 2u);
  for (const std::string& phase : phases) {
    EXPECT_THAT(phase, ::testing::AnyOf("forward", "backward", "step"));
  }
  std::ofstream(tmp.path() + "/over") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
}

}  // namespace
}  // namespace tessera::internal::testing
