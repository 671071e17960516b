// Flight records of ranks that share no memory, written after a failure, and reports of long waits.
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/support/warnings_of_ranks.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_mpi_ranks_expecting_errors;
using testing::TemporaryDirectory;
using testing::WarningsOfRanks;

constexpr auto kTimeOut = std::chrono::seconds(20);
/// Much longer than the delay between ranks that are on time.
constexpr auto kReportAfter = std::chrono::seconds(1);

/// While alive, failures are dumped.
class DumpsInto {
 public:
  explicit DumpsInto(const TemporaryDirectory& directory) {
    ::setenv("TESSERA_FLIGHT_DUMP", directory.path().c_str(), /*overwrite=*/1);
  }
  ~DumpsInto() { ::unsetenv("TESSERA_FLIGHT_DUMP"); }
};

/// Returns the files with this prefix, once there is one.
std::vector<std::string> texts_in(const TemporaryDirectory& directory, const std::string& begin) {
  std::vector<std::string> texts;
  while (texts.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      const std::string name = entry.path().filename();
      if (!absl::StartsWith(name, begin)) continue;
      const std::string text = testing::content_of(entry.path());
      // Complete if it ends with a newline.
      if (!text.empty() && text.back() == '\n') texts.push_back(text);
    }
    std::this_thread::yield();
  }
  return texts;
}

void sum(ProcessGroup& group, const std::string& tag) {
  at::Tensor tensor = at::ones({4});
  group.all_reduce(tensor, ReduceOp::kSum, tag)->wait();
}

TEST(FlightsOverMpi, EachRankWritesDownItsCalls) {
  const TemporaryDirectory directory;
  const DumpsInto dumps(directory);
  const auto errors = run_mpi_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
    sum(*group, "same");
    if (group->rank() == 0) group->isend(at::ones({4}), 1, "halo");
    sum(*group, group->rank() == 2 ? "odd" : "even");
  });
  EXPECT_THAT(errors[1], HasSubstr("'odd' where rank 0 called"));
  for (const int rank : {0, 1, 2}) {
    const std::string name = absl::StrCat("flight-mpi-rank-", rank, "-");
    const auto texts = texts_in(directory, name);
    ASSERT_EQ(texts.size(), 1U);
    const std::string& text = texts[0];
    EXPECT_THAT(text, AllOf(HasSubstr("same"), HasSubstr(rank == 2 ? "odd" : "even"),
                            HasSubstr("where rank 0 called all_reduce")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\nrank ", rank, " (pid ", ::getpid(), ") runs")));
    EXPECT_EQ(absl::StrContains(text, "halo"), rank == 0);
  }
}

TEST(FlightsOverMpi, NothingIsWrittenWhereNobodyAsksForIt) {
  const TemporaryDirectory directory;
  const auto errors = run_mpi_ranks_expecting_errors(
      2, [](std::shared_ptr<ProcessGroup> group) { sum(*group, group->rank() == 0 ? "a" : "b"); });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 called"));
  EXPECT_TRUE(directory.is_empty());
}

TEST(FlightsOverMpi, HostsRecordWhatTheirRanksCalled) {
  const TemporaryDirectory directory;
  const DumpsInto dumps(directory);
  testing::run_mpi_hosts_expecting_errors({0, 0, 1, 1}, [](std::shared_ptr<ProcessGroup> group) {
    sum(*group, "same");
    sum(*group, group->rank() == 3 ? "odd" : "even");
  });
  // One file per host.
  const auto texts = texts_in(directory, "flight-rank-");
  EXPECT_THAT(texts,
              ::testing::UnorderedElementsAre(
                  AllOf(HasSubstr("rank 0 (pid"), HasSubstr("rank 1 (pid"), HasSubstr("'even'")),
                  AllOf(HasSubstr("rank 2 (pid"), HasSubstr("rank 3 (pid"), HasSubstr("'odd'"))));
  EXPECT_THAT(texts, ::testing::Each(
                         AllOf(HasSubstr("#0 all_reduce SUM float32[4] 'same' on group 'world'"),
                               HasSubstr(absl::StrCat("(pid ", ::getpid(), " on node")))));
}

/// Runs ranks; `warnings` receives the warnings of the progress thread.
void run_reporting(int size, WarningsOfRanks& warnings, const testing::MpiBody& body,
                   std::chrono::milliseconds report_after = kReportAfter) {
  const auto set = [](c10::WarningHandler* handler) {
    mpi::Progress::instance().run([handler] { c10::WarningUtils::set_warning_handler(handler); },
                                  kTimeOut);
  };
  set(&warnings);
  const auto errors = run_mpi_ranks_expecting_errors(size, body, kTimeOut, report_after);
  set(nullptr);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(FlightsOverMpi, OneRankSaysWhoHasNotComeAndWhereItWasLastSeen) {
  WarningsOfRanks warnings;
  run_reporting(3, warnings, [&](std::shared_ptr<ProcessGroup> group) {
    group->barrier("all here");
    if (group->rank() == 1) warnings.await();
    group->barrier("late");
    group->barrier("end");
  });
  ASSERT_EQ(warnings.texts().size(), 1U);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("[comm] barrier 'late' #1 on group 'world': rank 0 has waited "),
                    HasSubstr(" ms for rank 1, which is on another host, "),
                    HasSubstr("last seen in #0 barrier 'all here' on group 'world', over "),
                    HasSubstr("until the time-out of 20000 ms"), Not(HasSubstr("and for"))));
}

TEST(FlightsOverMpi, NegativeControlNobodySaysItWhereNobodyWantsIt) {
  WarningsOfRanks warnings;
  run_reporting(
      2, warnings,
      [](std::shared_ptr<ProcessGroup> group) {
        group->barrier("all here");
        // A shorter time would pass, too.
        if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        group->barrier("late");
      },
      std::chrono::milliseconds(0));
  EXPECT_TRUE(warnings.texts().empty());
}

TEST(FlightsOverMpi, AMessageSaysWhomItWaitsFor) {
  WarningsOfRanks warnings;
  run_reporting(2, warnings, [&](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::zeros({3});
    if (group->rank() == 0) {
      warnings.await();
      group->send(tensor, 1, "halo");
    } else {
      group->recv(tensor, 0, "halo");
    }
    group->barrier("end");
  });
  ASSERT_EQ(warnings.texts().size(), 1U);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("[comm] recv float32[3] from rank 0 'halo' on group 'world': rank 1 "
                              "has waited "),
                    HasSubstr(" ms for rank 0, which is on another host")));
}

}  // namespace
}  // namespace tessera::internal
