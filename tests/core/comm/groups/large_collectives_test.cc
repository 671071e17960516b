// Collectives of more than 2^31 bytes over shared memory.
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

testing::GroupBackend over_shm() {
  return {.name = "shm", .world_sizes = {2}, .run = [](int size, const testing::RankBody& body) {
            testing::run_ranks(size, body);
          }};
}

TEST(LargeCollectives, OfMoreThan2To31Bytes) {
  if (kIsSlow) GTEST_SKIP() << "not run: takes minutes under a sanitizer";
  test_large_collectives(over_shm());
}

TEST(LargeCollectives, AMessageOfMoreThan2To31Bytes) {
  if (kIsSlow) GTEST_SKIP() << "not run: takes minutes under a sanitizer";
  test_large_message(over_shm());
}

}  // namespace
}  // namespace tessera::internal
