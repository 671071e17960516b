// A rank that leaves a call halfway by an exception that is not NCCL's failure. Its peers learn of
// it at once and not by their time-out, which is much longer than these tests.
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/errors.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using ::testing::AllOf;
using ::testing::Each;
using testing::fake;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::NcclRankOptions;
using ::testing::Not;
using testing::run_nccl_ranks_expecting_errors;

class NcclLeftCalls : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

/// A device that runs out of memory when it is told to.
class FullDevice final : public Device {
 public:
  explicit FullDevice(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  at::Device torch_device() const override { return inner_->torch_device(); }
  std::shared_ptr<Stream> current_stream() override {
    if (is_full) throw std::bad_alloc();
    return inner_->current_stream();
  }
  std::shared_ptr<Stream> make_stream(Priority priority) override {
    return inner_->make_stream(priority);
  }
  std::shared_ptr<Event> make_event() override { return inner_->make_event(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate_on_host(numel, dtype);
  }

  std::atomic<bool> is_full{false};

 private:
  const std::shared_ptr<Device> inner_;
};

using Body = std::function<void(Group& group, FullDevice& device)>;

/// Runs `body` on ranks that keep their group while they wait for the others' errors: destroying a
/// group would inform the others, too.
std::vector<std::string> errors_of(int size, const Body& body) {
  std::atomic<int> over{0};
  std::vector<std::shared_ptr<FullDevice>> devices(size);
  NcclRankOptions options;
  options.make = [&](nccl::WorldOptions world) {
    world.device = devices[world.rank] = std::make_shared<FullDevice>(world.device);
    return nccl::make_world(std::move(world));
  };
  return run_nccl_ranks_expecting_errors(
      size,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        std::exception_ptr error;
        try {
          group->barrier("together");
          body(*group, *devices[group->rank()]);
        } catch (...) {
          error = std::current_exception();
        }
        devices[group->rank()]->is_full = false;
        ++over;
        while (over < size) std::this_thread::yield();
        if (error != nullptr) std::rethrow_exception(error);
      },
      options);
}

TEST_F(NcclLeftCalls, BeforeItsWorkIsQueued) {
  const auto errors = errors_of(3, [](Group& group, FullDevice& device) {
    if (group.rank() == 1) device.is_full = true;
    wait_on_host(*group.all_reduce(at::ones({8}), ReduceOp::kSum, "bucket 3"));
  });
  EXPECT_EQ(errors[1], "std::bad_alloc");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("rank 1 left all_reduce SUM float32[8] 'bucket 3' on group 'world' "
                                "by an exception: std::bad_alloc"),
                      Not(HasSubstr("timed out"))));
  }
}

/// A table that truncates rank 1's part of gathers on the host, or throws.
class BadTable final : public JobTable {
 public:
  enum class Fault : uint8_t { kNone, kShort, kThrow };
  std::atomic<Fault> fault{Fault::kNone};

  std::optional<std::string> get(const std::string& key) override {
    auto value = JobTable::get(key);
    if (key.find("nccl/host/") == std::string::npos || key.back() != '1' || !value) return value;
    if (fault == Fault::kShort) value->resize(value->size() - 3);
    if (fault == Fault::kThrow) throw std::bad_alloc();
    return value;
  }
};

NcclRankOptions over(const std::shared_ptr<BadTable>& table) {
  NcclRankOptions options;
  options.make = [table](nccl::WorldOptions world) {
    world.table = table;
    return nccl::make_world(std::move(world));
  };
  return options;
}

TEST_F(NcclLeftCalls, AGatherOnTheHostOfTooFewBytesIsAnError) {
  const auto table = std::make_shared<BadTable>();
  const auto errors = run_nccl_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        group->barrier();
        table->fault = BadTable::Fault::kShort;
        const at::Tensor all = at::full({4}, -1, at::kLong);
        group->all_gather_on_host(all, at::full({2}, 7, at::kLong), "vote");
      },
      over(table));
  EXPECT_THAT(errors, Each(HasSubstr("got 13 bytes of rank 1, expected 16")));
}

TEST_F(NcclLeftCalls, AGatherOnTheHost) {
  const auto table = std::make_shared<BadTable>();
  std::atomic<int> over_count{0};
  const auto errors = run_nccl_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        group->barrier();
        table->fault = BadTable::Fault::kThrow;
        try {
          group->all_gather_on_host(at::zeros({4}, at::kLong), at::ones({2}, at::kLong), "vote");
        } catch (...) {
        }
        ++over_count;
        while (over_count < 2) std::this_thread::yield();
        table->fault = BadTable::Fault::kNone;
        group->barrier("next");
      },
      over(table));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("left all_gather int64[2] 'vote' on group 'world' by an "
                                           "exception: std::bad_alloc"),
                                 Not(HasSubstr("timed out")))));
}

}  // namespace
}  // namespace tessera::internal
