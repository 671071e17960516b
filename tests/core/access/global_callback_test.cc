#include "tessera/core/access/global_callback.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::atomic<int> calls{0};

at::RecordFunctionCallback counter() {
  return at::RecordFunctionCallback([](const at::RecordFunction&) {
           ++calls;
           return std::unique_ptr<at::ObserverContext>();
         })
      .scopes({at::RecordScope::FUNCTION});
}

/// Constructed before LibTorch's list of callbacks, and so destroyed after it.
std::optional<GlobalCallback> of_the_process;

TEST(GlobalCallback, IsCalledWhileItLives) {
  const at::Tensor one = torch::ones(1);
  calls = 0;
  {
    const GlobalCallback callback(counter());
    one.add(one);
    EXPECT_GT(calls, 0);
  }
  calls = 0;
  one.add(one);
  EXPECT_EQ(calls, 0);
}

TEST(GlobalCallback, MayOutliveLibTorchsList) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end = [] {
    of_the_process.emplace(counter());
    std::exit(0);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(0), Not(HasSubstr("callback is not found")));
}

}  // namespace
}  // namespace tessera::internal
