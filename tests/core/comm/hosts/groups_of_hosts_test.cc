// The groups that a group of several hosts makes, and how ranks read each other's memory there.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/hosts/read_cache.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::hosts_in_order;
using testing::message_of;
using testing::run_host_ranks;

/// Expects that `own` sums to `sum` over the ranks of `group`.
void expect_sum(ProcessGroup& group, int own, int64_t sum) {
  at::Tensor tensor = at::full({1000}, own, at::kLong);
  group.all_reduce(tensor, ReduceOp::kSum, "sum")->wait();
  EXPECT_TRUE(at::equal(tensor, at::full({1000}, sum, at::kLong)));
}

TEST(GroupsOfHosts, AreWhatTheirRanksNeed) {
  run_host_ranks(hosts_in_order(2, 3), [](std::shared_ptr<ProcessGroup> world) {
    const int own = world->rank();
    EXPECT_EQ(world->backend(), "hosts");
    EXPECT_EQ(world->name(), "world");
    EXPECT_TRUE(world->can().in_background);
    EXPECT_EQ(world->make_shared_buffer(64, "none"), nullptr);
    struct Expected {
      std::vector<int> ranks;
      std::string name;
      bool is_two_level;
    };
    const std::vector<Expected> all = {{{0, 1, 2}, "one host", false},
                                       {{1, 4}, "one of each", false},
                                       {{0, 1, 3, 4}, "two of each", true},
                                       {{0, 1, 3}, "uneven", false},
                                       {{5}, "alone", false}};
    for (const Expected& expected : all) {
      const auto group = world->subgroup(expected.ranks, expected.name);
      const auto place = std::find(expected.ranks.begin(), expected.ranks.end(), own);
      ASSERT_EQ(group != nullptr, place != expected.ranks.end());
      if (group == nullptr) continue;
      EXPECT_EQ(group->name(), "world/" + expected.name);
      EXPECT_EQ(group->size(), static_cast<int>(expected.ranks.size()));
      EXPECT_EQ(group->rank(), place - expected.ranks.begin());
      EXPECT_EQ(group->backend(), expected.is_two_level ? "hosts" : "shm");
      int64_t sum = 0;
      for (const int rank : expected.ranks) sum += rank;
      expect_sum(*group, own, sum);
      const auto again = duplicate(*group, "again");
      EXPECT_EQ(again->name(), "world/" + expected.name + "/again");
      expect_sum(*again, own, sum);
    }
    const auto host = split(*world, {0, 0, 0, 1, 1, 1}, "host");
    const auto buffer = host->make_shared_buffer(4096, "shared");
    ASSERT_NE(buffer, nullptr);
    EXPECT_THAT(message_of([&] {
                  world->subgroup({0, 1}, "one host");
                }),
                HasSubstr("expected one that this group has not given yet"));
    expect_sum(*world, own, 15);
  });
}

/// Element i of rank r in update u.
float value_of(int rank, int64_t i, int64_t update) {
  return static_cast<float>(rank * 1000 + update * 100) + static_cast<float>(i % 97);
}

at::Tensor values_of(int rank, int64_t numel, int64_t update) {
  return at::arange(numel, at::kFloat).remainder(97) + value_of(rank, 0, update);
}

TEST(WindowsOfHosts, ReadEveryRankAtEveryVersion) {
  for (const auto& host_of_rank : {hosts_in_order(2, 2), hosts_in_order(3, 2)}) {
    run_host_ranks(host_of_rank, [](std::shared_ptr<ProcessGroup> group) {
      EXPECT_TRUE(group->can().one_sided_reads);
      constexpr int64_t kNumel = 1003;
      const at::Tensor own = group->allocate(kNumel, at::kFloat);
      const auto window = group->make_window(own, "w");
      for (int64_t update = 0; update < 20; ++update) {
        own.copy_(values_of(group->rank(), kNumel, update));
        group->barrier("written");
        for (int other = 0; other < group->size(); ++other) {
          const int rank = (other + group->rank()) % group->size();
          const at::Tensor expected = values_of(rank, kNumel, update);
          at::Tensor to = at::zeros({kNumel});
          window->read(rank, 0, to, "unit", update);
          EXPECT_TRUE(at::equal(to, expected));
          to.zero_();
          window->read(rank, 0, to, "unit");  // whatever the window holds now
          EXPECT_TRUE(at::equal(to, expected));
          at::Tensor part = at::zeros({10});
          window->read(rank, 500, part, "unit", update);
          EXPECT_TRUE(at::equal(part, expected.narrow(0, 500, 10)));
        }
        group->barrier("read");
      }
      EXPECT_THAT(message_of([&] { window->read(9, 0, at::zeros({3}), "unit", 1); }),
                  HasSubstr("[comm] read: got rank 9"));
      EXPECT_THAT(message_of([&] { window->read(3, 1001, at::zeros({3}), "unit", 1); }),
                  HasSubstr("[comm] read: got elements 1001 to 1004 of rank 3"));
      const at::Tensor words = group->allocate(1, at::kLong);
      words.zero_();
      const auto stamps = group->make_window(words, "stamps");
      stamps->store(0, 7 + group->rank());
      group->barrier("stamped");
      for (int rank = 0; rank < group->size(); ++rank) {
        EXPECT_EQ(stamps->load(rank, 0), 7 + rank);
      }
      group->barrier("end");
    });
  }
}

TEST(WindowsOfHosts, OverPrivateMemoryAreRefusedByAll) {
  const auto text_for = [](const std::string& ranks) {
    return "[comm] make_window 'w': got private memory on " + ranks +
           ", expected memory that peers can map; it must come from allocate()";
  };
  const std::vector<std::pair<std::vector<int>, std::string>> cases = {
      {{3}, text_for("rank 3 of the world")},
      {{0, 1}, text_for("rank 0, rank 1")},
      {{0, 2}, text_for("rank 0") + "\n" + text_for("rank 2 of the world")}};
  for (const auto& [odd_ranks, text] : cases) {
    std::vector<std::string> texts(4);
    run_host_ranks(
        hosts_in_order(2, 2), [&, &odd_ranks = odd_ranks](std::shared_ptr<ProcessGroup> group) {
          const int rank = group->rank();
          const bool is_odd = std::count(odd_ranks.begin(), odd_ranks.end(), rank) > 0;
          const at::Tensor own = is_odd ? at::zeros({8}) : group->allocate(8, at::kFloat).zero_();
          texts[static_cast<size_t>(rank)] = message_of([&] { group->make_window(own, "w"); });
          group->barrier("still usable");
        });
    EXPECT_THAT(texts, Each(text));
  }
}

/// Runs ranks of one host, which have a cache and no windows.
void run_with_cache(
    int size, int64_t bytes,
    const std::function<void(ProcessGroup&, std::shared_ptr<hosts::ReadCache>)>& body) {
  testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
    auto cache = hosts::ReadCache::make(*group);
    ASSERT_NE(cache, nullptr);
    cache->reserve(bytes);
    group->barrier("made");
    body(*group, std::move(cache));
    group->barrier("end");
  });
}

/// Returns a fetch of values_of() that counts its calls.
hosts::ReadCache::Fetch counting(std::atomic<int>& count, int rank, int64_t version) {
  return [&count, rank, version](const at::Tensor& to) {
    ++count;
    to.copy_(values_of(rank, to.numel(), version));
    return completed_work();
  };
}

TEST(ReadCache, FetchesEveryPartOnceForAHost) {
  std::atomic<int> count{0};
  run_with_cache(3, int64_t{1} << 20, [&](ProcessGroup& group, auto cache) {
    for (int64_t version = 0; version < 50; ++version) {
      for (int part = 0; part < 8; ++part) {
        const int rank = (part + group.rank() * 3) % 8;
        at::Tensor to = at::zeros({1001});
        const hosts::ReadKey key{.window = 1, .rank = rank, .bytes = 4004, .version = version};
        cache->start_read(key, to, counting(count, rank, version), [] {})->wait();
        EXPECT_TRUE(at::equal(to, values_of(rank, 1001, version)));
      }
      group.barrier("version");
    }
  });
  EXPECT_EQ(count.load(), 50 * 8);
}

// Each rank reads by itself what does not fit; parts of any size are evicted if they are in the
// way.
TEST(ReadCache, MakesRoomOrDoesWithout) {
  std::atomic<int> count{0};
  run_with_cache(3, 10000, [&](ProcessGroup& group, auto cache) {
    for (int64_t version = 0; version < 200; ++version) {
      for (const int64_t numel : {int64_t{300}, int64_t{1}, 17 + 13 * version, int64_t{5000}}) {
        const int rank = static_cast<int>(numel % 7);
        at::Tensor to = at::zeros({numel});
        const hosts::ReadKey key{
            .window = 2, .rank = rank, .begin = numel, .bytes = 4 * numel, .version = version};
        cache->start_read(key, to, counting(count, rank, version), [] {})->wait();
        ASSERT_TRUE(at::equal(to, values_of(rank, numel, version)));
      }
    }
    static_cast<void>(group);
  });
  EXPECT_GE(count.load(), 200 * (2 + 3));
  EXPECT_LE(count.load(), 200 * 4 * 3);
}

/// Completes when it is told a number; fails if that is negative.
class HeldWork final : public Work {
 public:
  explicit HeldWork(std::atomic<int>& told) : told_(told) {}
  bool is_completed() override { return told_.load() != 0; }
  void wait() override {
    while (told_.load() == 0) std::this_thread::yield();
    if (told_.load() < 0) throw std::runtime_error("the fetch failed");
  }

 private:
  std::atomic<int>& told_;
};

constexpr hosts::ReadKey kHeldKey{.window = 1, .rank = 5, .bytes = 400, .version = 1};

/// Starts fetching it into `to` [100]; the fetch completes when it is told to.
std::shared_ptr<Work> start_held(const std::shared_ptr<hosts::ReadCache>& cache, at::Tensor& to,
                                 std::atomic<int>& told) {
  return cache->start_read(
      kHeldKey, to, [&told](const at::Tensor&) { return std::make_shared<HeldWork>(told); }, [] {});
}

TEST(ReadCache, WhoseFetchFailsHoldsUpNobody) {
  std::atomic<int> told{0}, claimed{0}, count{0};
  run_with_cache(3, int64_t{1} << 20, [&](ProcessGroup& group, auto cache) {
    at::Tensor to = at::zeros({100});
    if (group.rank() == 0) {
      const auto work = start_held(cache, to, told);
      claimed = 1;
      EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("the fetch failed"));
      return;
    }
    while (claimed.load() == 0) std::this_thread::yield();
    const auto work = cache->start_read(kHeldKey, to, counting(count, 5, 1), [] {});
    if (group.rank() == 2) {
      EXPECT_FALSE(work->is_completed());
      told = -1;
    }
    work->wait();
    EXPECT_TRUE(at::equal(to, values_of(5, 100, 1)));
  });
  EXPECT_EQ(count.load(), 2);
}

// Rank 1 no longer waits for rank 0's fetch, and its own fails. Then the ring gives the part's
// place to a larger one, which a second wait() must not take for the part.
TEST(ReadCache, WhoseFetchFailsThrowsAgainFromASecondWait) {
  std::atomic<int> told{0}, claimed{0}, count{0}, fails{-1}, has_failed{0};
  run_with_cache(2, 10000, [&](ProcessGroup& group, auto cache) {
    at::Tensor to = at::zeros({100});
    if (group.rank() == 0) {
      const auto work = start_held(cache, to, told);
      claimed = 1;
      while (has_failed.load() == 0) std::this_thread::yield();
      told = 1;
      work->wait();
    } else {
      while (claimed.load() == 0) std::this_thread::yield();
      const auto work = start_held(cache, to, fails);
      EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("the fetch failed"));
      has_failed = 1;
      while (told.load() == 0) std::this_thread::yield();
      for (int64_t version = 0; version < 4; ++version) {
        at::Tensor larger = at::zeros({2000});
        const hosts::ReadKey key{.window = 1, .rank = 6, .bytes = 8000, .version = version};
        cache->start_read(key, larger, counting(count, 6, version), [] {})->wait();
      }
      EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("the fetch failed"));
      EXPECT_TRUE(at::equal(to, at::zeros({100})));
    }
  });
}

// A rank that has begun to prefetch is in a collective with a rank that needs the part now.
TEST(ReadCache, WhatIsFetchedAheadHoldsUpNobody) {
  std::atomic<int> told{0}, claimed{0}, count{0};
  run_with_cache(2, int64_t{1} << 20, [&](ProcessGroup& group, auto cache) {
    at::Tensor to = at::zeros({100});
    if (group.rank() == 0) {
      const auto work = start_held(cache, to, told);
      claimed = 1;
      group.barrier("before it is needed here");
      told = 1;
      return work->wait();
    }
    while (claimed.load() == 0) std::this_thread::yield();
    int checks = 0;  // every 20 ms or less often
    const auto give_up = [&checks] {
      if (++checks > 300) throw std::runtime_error("waits for a rank that waits for this one");
    };
    cache->start_read(kHeldKey, to, counting(count, 5, 1), give_up)->wait();
    EXPECT_TRUE(at::equal(to, values_of(5, 100, 1)));
    group.barrier("before it is needed here");
  });
  EXPECT_EQ(count.load(), 1);
}

TEST(ReadCache, WhoWaitsLearnsThatTheGroupHasFailed) {
  std::atomic<int> told{0}, claimed{0}, count{0};
  run_with_cache(2, int64_t{1} << 20, [&](ProcessGroup& group, auto cache) {
    at::Tensor to = at::zeros({100});
    if (group.rank() == 0) {
      const auto work = start_held(cache, to, told);
      claimed = 1;
      work->wait();
      return;
    }
    while (claimed.load() == 0) std::this_thread::yield();
    const auto work = cache->start_read(kHeldKey, to, counting(count, 5, 1),
                                        [] { throw std::runtime_error("rank 7 died"); });
    EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("rank 7 died"));
    told = 1;
  });
  EXPECT_EQ(count.load(), 0);
}

}  // namespace
}  // namespace tessera::internal
