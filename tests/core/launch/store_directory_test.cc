#include "tessera/core/launch/store_directory.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/refused_calls.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What is made in `place` under a umask where chmod() is refused.
absl::StatusOr<std::string> made_without_chmod(const std::string& place, mode_t mask) {
  ::setenv("TMPDIR", place.c_str(), 1);
  const mode_t before = ::umask(mask);
  absl::StatusOr<std::string> made;
  run_with_refused_calls({{kChmodCall, EPERM}}, [&] { made = create_store_directory(); });
  ::umask(before);
  ::unsetenv("TMPDIR");
  return made;
}

TEST(StoreDirectory, NeedsNoChmodWhereItsModeIsRight) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const TemporaryDirectory place;
  const auto made = made_without_chmod(place.path(), 0022);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(*made, StartsWith(place.path() + "/tessera-run-"));
  remove_store_directory(*made);
  EXPECT_TRUE(place.is_empty());
  // Where it is not, the directory cannot be used, and nothing is left.
  const auto refused = made_without_chmod(place.path(), 0277);
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(
      std::string(refused.status().message()),
      AllOf(HasSubstr(place.path() + ": Operation not permitted"), HasSubstr("set TMPDIR")));
  EXPECT_TRUE(place.is_empty());
}

}  // namespace
}  // namespace tessera::internal::testing
