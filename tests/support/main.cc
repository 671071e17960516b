#include <gtest/gtest.h>

#include "tessera/tests/support/rank_processes.h"

/// Runs the tests, or one rank of a test that started this binary again.
int main(int argc, char** argv) {
  const int code = tessera::internal::testing::run_rank_body_if_asked(argc, argv);
  if (code >= 0) return code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
