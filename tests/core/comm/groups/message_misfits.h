#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// Runs a body on `size` ranks of a backend and returns each rank's error.
using RunExpectingErrors = std::function<std::vector<std::string>(
    int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& body)>;

/// A message of `numel` ints is received as three floats: every rank's error names both calls.
inline void expect_misfit_is_named(const RunExpectingErrors& run, int64_t numel) {
  const auto errors = run(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    if (group->rank() == 1) group->send(at::zeros({numel}, at::kInt), 2, "halo");
    at::Tensor tensor = at::zeros({3});
    if (group->rank() == 2) group->recv(tensor, 1, "halo");
    group->barrier("after");
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr(
                          "rank 2 called recv float32[3] from rank 1 'halo' where rank 1 called "
                          "send int32[" +
                          std::to_string(numel) + "] to rank 2 'halo'")));
}

}  // namespace tessera::internal::testing
