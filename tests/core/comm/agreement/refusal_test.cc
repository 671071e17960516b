#include "tessera/core/comm/agreement/refusal.h"

#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

/// Returns the errors of a world whose ranks have `problems`, one each.
std::vector<std::string> refusals(const std::vector<std::string>& problems) {
  return testing::run_ranks_expecting_errors(
      static_cast<int>(problems.size()), [&](const std::shared_ptr<ProcessGroup>& world) {
        refuse_on_all_ranks(*world, problems[world->rank()], "test");
      });
}

TEST(Refusal, SaysAProblemOfSeveralRanksOnce) {
  EXPECT_THAT(refusals({"a", "a", "a"}), Each(HasSubstr("[test] all ranks: a")));
  EXPECT_THAT(refusals({"a", "b", "a"}), Each(HasSubstr("[test] ranks 0, 2: a\n[test] rank 1: b")));
  EXPECT_THAT(refusals({"", "b", ""}), Each(HasSubstr("[test] rank 1: b")));
  EXPECT_THAT(refusals({"", "b", ""}), Each(Not(HasSubstr("rank 0: "))));
  EXPECT_THAT(refusals({"alone"}), Each(HasSubstr("[test] rank 0: alone")));
}

TEST(Refusal, SaysTenLinesOfAProblem) {
  const std::vector<std::string> ten(10, "line");
  EXPECT_THAT(refusals({absl::StrJoin(ten, "\n"), ""}), Each(Not(HasSubstr("more"))));
  const std::string twelve = absl::StrCat(absl::StrJoin(ten, "\n"), "\neleven\ntwelve");
  EXPECT_THAT(refusals({twelve, twelve}), Each(HasSubstr("line\n... and 2 more")));
  EXPECT_THAT(refusals({twelve, twelve}), Each(Not(HasSubstr("eleven"))));
}

TEST(Refusal, HasItsTagOnce) {
  EXPECT_EQ(refusal_text({"[test] got 1", "[other] got 2"}, "test"),
            "[test] rank 0: got 1\n[test] rank 1: [other] got 2");
}

/// std::terminate() prints the type of an uncaught exception.
TEST(Refusal, IsThrownAsAPublicType) {
  testing::run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    try {
      refuse_on_all_ranks(*world, "a", "test");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      EXPECT_EQ(c10::demangle(typeid(error).name()), "tessera::ErrorOnAllRanks");
    }
  });
}

TEST(Refusal, NegativeControlNothingIsRefusedWithoutAProblem) {
  EXPECT_THAT(refusals({"", "", ""}), Each(""));
}

}  // namespace
}  // namespace tessera::internal
