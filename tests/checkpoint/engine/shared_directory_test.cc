// Ranks that do not see the same directory, as on hosts without a shared file system, learn of it
// before they train and not by the first save.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/engine/step_save.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/tests/checkpoint/simulated_file_system.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SharedDirectory, IsRefusedWhereARankSeesAnother) {
  std::vector<SimulatedFileSystem> hosts(3);
  for (SimulatedFileSystem& host : hosts) ASSERT_TRUE(host.make_directory("/run").ok());
  const auto errors = run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
    open_run_directory(hosts[static_cast<size_t>(world->rank())], *world, "/run");
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[checkpoint] ranks 1, 2: '/run': got"),
                                 HasSubstr("expected one that all ranks share"))));
  EXPECT_THAT(*hosts[0].list("/run"), ElementsAre("lock"));
}

TEST(SharedDirectory, HasNothingElseOnceItIsOpen) {
  const TemporaryDirectory directory;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    PosixFileSystem files;
    const auto run = open_run_directory(files, *world, directory.path());
    EXPECT_EQ(run != nullptr, world->rank() == 0);
    world->barrier();
    EXPECT_THAT(*files.list(directory.path()), ElementsAre("lock"));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
