#include <cstdio>
#include <exception>

#include <gtest/gtest.h>

#include "tessera/tests/support/gpu_for_tests.h"
#include "tessera/tests/support/rank_processes.h"

/// As main.cc, for programs whose tests run on GPUs, real or fake.
int main(int argc, char** argv) {
  try {
    tessera::internal::testing::load_gpu_for_tests();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  const int code = tessera::internal::testing::run_rank_body_if_asked(argc, argv);
  if (code >= 0) return code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
