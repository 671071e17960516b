#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_threads.h"

// Time-outs longer than clocks can count, and no time-out.

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const std::vector<milliseconds>& endless() {
  static const std::vector<milliseconds> all = {milliseconds::max(), milliseconds::max() / 1000,
                                                milliseconds::max() / 1'000'000 + milliseconds(1),
                                                std::chrono::hours(24 * 365 * 300),
                                                std::chrono::hours(24 * 365)};
  return all;
}

TEST(TimeOut, OneTooLongToCountIsLong) {
  for (const milliseconds timeout : endless()) {
    SCOPED_TRACE(timeout.count());
    testing::RankThreadOptions options;
    options.timeout = timeout;
    testing::run_ranks(
        3,
        [](std::shared_ptr<ProcessGroup> world) {
          // Often enough that every rank has to sleep for the others at some time.
          for (int i = 0; i < 300; ++i) world->barrier("wait");
          const auto part = duplicate(*world, "part");
          const at::Tensor sum = at::ones({3});
          part->all_reduce(sum, ReduceOp::kSum, "sum")->wait();
          EXPECT_TRUE(at::equal(sum, at::full({3}, 3.0F)));
        },
        options);
  }
}

TEST(TimeOut, NoneIsRefused) {
  for (const milliseconds timeout : {milliseconds(0), milliseconds(-1), milliseconds::min()}) {
    const std::string text =
        absl::StrCat("[rendezvous] options: got a timeout of ", timeout.count(),
                     " ms, expected more than 0; leave it out for 10 minutes");
    EXPECT_THAT([&] { init_process_group({.timeout = timeout}); },
                ::testing::ThrowsMessage<c10::Error>(HasSubstr(text)));
  }
}

}  // namespace
}  // namespace tessera::internal
