#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"
#include "tessera/tests/core/comm/groups/window_suite.h"

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct WindowDifference {
  std::function<void(ProcessGroup&)> usual;
  std::function<void(ProcessGroup&)> other;  // what rank 1 does instead
  const char* text;
};

struct WindowMisuse {
  std::function<void(ProcessGroup&, Window&)> call;
  const char* text;
};

/// The cause that a read ends with; "" if it succeeds.
std::string cause_of_read(Window& window, int rank) {
  try {
    read_new(window, rank, 0, 10);
  } catch (const CommError& error) {
    EXPECT_EQ(error.context().op, "read");
    EXPECT_EQ(error.context().tag, "unit");
    EXPECT_THAT(error.what(), HasSubstr("[comm] read 'unit' on group 'world"));
    return error.cause();
  }
  return "";
}

}  // namespace

void test_window_differences(const WindowBackend& backend) {
  const auto make = [](int64_t numel, at::ScalarType dtype, const char* name) {
    return [=](ProcessGroup& group) { group.make_window(group.allocate(numel, dtype), name); };
  };
  const std::vector<WindowDifference> differences = {
      {make(4, at::kFloat, "w"), make(5, at::kFloat, "w"),
       "rank 1 called make_window float32[5] 'w' where rank 0 called make_window float32[4] 'w'"},
      {make(4, at::kFloat, "w"), make(4, at::kInt, "w"), "rank 1 called make_window int32[4] 'w'"},
      {make(4, at::kFloat, "w"), make(4, at::kFloat, "v"), "make_window float32[4] 'v' where"},
      {make(4, at::kFloat, "w"), make(0, at::kFloat, "w"), "make_window float32[0] 'w' where"},
      {make(4, at::kFloat, "w"), [](ProcessGroup& group) { group.barrier("w"); },
       "rank 1 called barrier 'w' where rank 0 called make_window float32[4] 'w'"},
  };
  for (const WindowDifference& difference : differences) {
    const auto errors = backend.run_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
      (group->rank() == 1 ? difference.other : difference.usual)(*group);
    });
    EXPECT_THAT(errors, Each(HasSubstr(difference.text)));
  }
}

void test_window_misuse(const WindowBackend& backend) {
  const std::vector<WindowMisuse> cases = {
      {[](ProcessGroup& g, Window&) { g.make_window(g.allocate(4, at::kFloat), ""); },
       "[comm] make_window: got an empty name"},
      {[](ProcessGroup& g, Window&) { g.make_window(at::Tensor(), "w"); },
       "[comm] make_window: got an undefined 'own'"},
      {[](ProcessGroup& g, Window&) {
         g.make_window(g.allocate(4, at::kFloat).view({2, 2}), "w");
       },
       "[comm] make_window: got 'own' of sizes [2, 2], expected one dimension"},
      {[](ProcessGroup& g, Window& w) { w.read(g.size(), 0, at::zeros({1})); }, ", expected 0 to "},
      {[](ProcessGroup&, Window& w) { w.read(-1, 0, at::zeros({1})); }, "[comm] read: got rank -1"},
      {[](ProcessGroup&, Window& w) { w.read(0, -1, at::zeros({1})); },
       "[comm] read: got elements -1 to 0 of rank 0, expected a range within 0 to 10"},
      {[](ProcessGroup&, Window& w) { w.read(0, 8, at::zeros({3})); },
       "[comm] read: got elements 8 to 11 of rank 0"},
      {[](ProcessGroup&, Window& w) { w.read(0, 11, at::zeros({0})); },
       "[comm] read: got elements 11 to 11 of rank 0"},
      {[](ProcessGroup&, Window& w) { w.load(0, 0); },
       "[comm] load: got word 0 of a window of 10 Float, expected a word of a window of int64"},
      {[](ProcessGroup&, Window& w) { w.store(0, 1); },
       "[comm] store: got word 0 of a window of 10 Float, expected a word of a window of int64"},
      {[](ProcessGroup& g, Window&) {
         g.make_window(g.allocate(3, at::kLong), "words")->load(g.size() - 1, 3);
       },
       "[comm] load: got word 3 of a window of 3 Long"},
      {[](ProcessGroup& g, Window&) {
         g.make_window(g.allocate(3, at::kLong), "words")->load(g.size(), 0);
       },
       "[comm] load: got rank "},
      {[](ProcessGroup&, Window& w) { w.read(0, 0, at::zeros({1}, at::kInt)); },
       "[comm] read: got 'to' of Int, expected Float"},
      {[](ProcessGroup&, Window& w) {
         w.read(0, 0, at::zeros({2, 2}));
       },
       "[comm] read: got 'to' of sizes [2, 2]"},
      {[](ProcessGroup&, Window& w) { w.read(0, 0, at::zeros({8}).slice(0, 0, 8, 2)); },
       "[comm] read: got a non-contiguous 'to'"},
  };
  for (const int size : {1, 2}) {
    for (const WindowMisuse& misuse : cases) {
      std::vector<std::string> texts(static_cast<size_t>(size));
      backend.run(size, [&](std::shared_ptr<ProcessGroup> g) {
        const at::Tensor own = g->allocate(10, at::kFloat);
        own.fill_(5);
        const auto window = g->make_window(own, "w");
        try {
          misuse.call(*g, *window);
        } catch (const c10::Error& error) {
          texts[static_cast<size_t>(g->rank())] = error.what_without_backtrace();
        }
        g->barrier();
        EXPECT_EQ(read_new(*window, g->size() - 1, 9, 1).item<float>(), 5);
        g->barrier();
      });
      EXPECT_THAT(texts, Each(HasSubstr(misuse.text)));
    }
  }
}

void test_failures_end_reads(const WindowBackend& backend) {
  for (const int size : {1, 3}) {
    std::atomic<int> ready{0};  // an abort may overtake the end of a barrier
    backend.run(size, [size, &ready](std::shared_ptr<ProcessGroup> world) {
      auto other = duplicate(*world, "other");
      const at::Tensor own = world->allocate(10, at::kFloat);
      const auto window = world->make_window(own, "w");
      const auto window_of_other = other->make_window(own, "w");
      const int last = size - 1;
      EXPECT_EQ(cause_of_read(*window, last), "");
      other->barrier("all have read");
      if (size > 1) {
        EXPECT_THROW(world->barrier(std::to_string(world->rank())), CommError);
        EXPECT_THAT(cause_of_read(*window, last), HasSubstr("called barrier '1' where rank 0"));
        EXPECT_EQ(cause_of_read(*window_of_other, last), "");
        other->barrier("all have read again");
      }
      ++ready;
      if (world->rank() == last) {
        while (ready < size) std::this_thread::yield();
        other->abort("enough");
      }
      while (cause_of_read(*window_of_other, last).empty()) std::this_thread::yield();
      EXPECT_EQ(cause_of_read(*window_of_other, last), "enough");
      world.reset();
      other.reset();
      EXPECT_EQ(cause_of_read(*window_of_other, 0), "enough") << "also when the groups are gone";
    });
  }
}

void test_windows_outlive_groups(const WindowBackend& backend) {
  std::promise<void> left;
  std::promise<void> has_read;
  auto gone = left.get_future().share();
  auto gate = has_read.get_future().share();
  backend.run(3, [&](std::shared_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    at::Tensor own = world->allocate(10, at::kFloat);
    own.fill_(rank);
    auto window = world->make_window(own, "w");
    world->barrier("written");
    if (rank == 1) {  // everything of it goes
      window.reset();
      world.reset();
      own.reset();
      left.set_value();
    } else if (rank == 2) {  // its window keeps the buffer
      world.reset();
      own.reset();
      gate.wait();
      EXPECT_EQ(read_new(*window, 2, 0, 10).sum().item<float>(), 20);
    } else {
      gone.wait();
      EXPECT_EQ(read_new(*window, 1, 0, 10).sum().item<float>(), 10);
      world.reset();
      EXPECT_EQ(read_new(*window, 2, 0, 10).sum().item<float>(), 20);
      EXPECT_EQ(read_new(*window, 0, 0, 10).sum().item<float>(), 0);
      has_read.set_value();
    }
  });
}

void test_windows_do_not_keep_ranks(const WindowBackend& backend) {
  const auto errors = backend.run_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
    const auto window = world->make_window(world->allocate(10, at::kFloat), "w");
    const bool leaves = world->rank() == 1;
    if (leaves) return world.reset();
    world->barrier("alone");
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group after "));
}

}  // namespace tessera::internal::testing
