#include "tessera/tests/core/comm/groups/window_suite.h"

#include <future>
#include <thread>
#include <utility>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/read_batch.h"

namespace tessera::internal::testing {

at::Tensor window_content(int rank, int round, int64_t numel, at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(numel, at::kLong) * 7 + rank * 31 + round * 101;
  return numbers.remainder(dtype == at::kByte || dtype == at::kBFloat16 ? 251 : 1000003).to(dtype);
}

at::Tensor read_new(Window& window, int rank, int64_t begin, int64_t numel, at::ScalarType dtype) {
  at::Tensor to = at::empty({numel}, dtype);
  window.read(rank, begin, to, "unit");
  return to;
}

void check_window_reads(ProcessGroup& group, const at::Tensor& own) {
  const int64_t numel = own.numel();
  const auto dtype = own.scalar_type();
  const auto window = group.make_window(own, absl::StrCat("window of ", numel));
  for (int round = 0; round < 2; ++round) {
    own.copy_(window_content(group.rank(), round, numel, dtype));
    group.barrier("written");
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor wanted = window_content(rank, round, numel, dtype);
      ASSERT_TRUE(at::equal(read_new(*window, rank, 0, numel, dtype), wanted));
      const int64_t begin = numel / 3;
      const at::Tensor shared = group.allocate(numel - begin, dtype);
      window->read(rank, begin, shared);
      ASSERT_TRUE(at::equal(shared, wanted.narrow(0, begin, numel - begin)));
      read_new(*window, rank, numel, 0, dtype);
    }
    group.barrier("read");
  }
}

void test_window_reads(const WindowBackend& backend) {
  for (const int size : backend.world_sizes) {
    backend.run(size, [](std::shared_ptr<ProcessGroup> group) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
        for (const int64_t numel : {0, 1, 7, 1000, 30011}) {
          check_window_reads(*group, group->allocate(numel, dtype));
          // A view, at a different offset on every rank.
          const at::Tensor whole = group->allocate(numel + 10, dtype);
          check_window_reads(*group, whole.narrow(0, group->rank() + 1, numel));
        }
      }
    });
  }
}

// Reads small and large parts of all ranks; waits for them at the end or never.
void test_reads_started_together(const WindowBackend& backend) {
  for (const int size : backend.world_sizes) {
    backend.run(size, [](std::shared_ptr<ProcessGroup> group) {
      constexpr int64_t kNumel = 4099;
      const at::Tensor own = group->allocate(kNumel, at::kFloat);
      own.copy_(window_content(group->rank(), 0, kNumel, at::kFloat));
      const auto window = group->make_window(own, "w");
      const at::Tensor to = at::zeros({group->size(), kNumel});
      ReadBatch reads;
      for (int rank = 0; rank < group->size(); ++rank) {
        const at::Tensor row = to[rank];
        reads.add(window->start_read(rank, 0, row.narrow(0, 0, 5), "small"));
        reads.add(window->start_read(rank, 5, row.narrow(0, 5, kNumel - 5), "large", 3));
      }
      reads.wait();
      for (int rank = 0; rank < group->size(); ++rank) {
        EXPECT_TRUE(at::equal(to[rank], window_content(rank, 0, kNumel, at::kFloat)));
      }
      // A read that nobody waits for completes too, and keeps its memory alive.
      for (int rank = 0; rank < group->size(); ++rank) {
        window->start_read(rank, 0, at::empty({kNumel}), "forgotten");
      }
      group->barrier();
    });
  }
}

void test_own_reads_that_overlap(const WindowBackend& backend) {
  backend.run(2, [](std::shared_ptr<ProcessGroup> group) {
    for (const int64_t numel : {1000, 1000003}) {
      const at::Tensor wanted = window_content(group->rank(), 0, numel, at::kFloat);
      const at::Tensor own = group->allocate(numel, at::kFloat);
      const auto window = group->make_window(own, absl::StrCat("window of ", numel));
      for (const int64_t shift : {1, 3, 500}) {
        own.copy_(wanted);
        window->read(group->rank(), 0, own.narrow(0, shift, numel - shift));
        EXPECT_TRUE(
            at::equal(own.narrow(0, shift, numel - shift), wanted.narrow(0, 0, numel - shift)));
        own.copy_(wanted);
        window->read(group->rank(), shift, own.narrow(0, 0, numel - shift));
        EXPECT_TRUE(
            at::equal(own.narrow(0, 0, numel - shift), wanted.narrow(0, shift, numel - shift)));
      }
      group->barrier("read");
    }
  });
}

void test_owner_that_takes_no_part(const WindowBackend& backend) {
  std::promise<void> has_read;
  auto gate = has_read.get_future().share();
  backend.run(3, [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(100, at::kFloat);
    own.fill_(group->rank() + 1);
    const auto window = group->make_window(own, "w");
    if (group->rank() != 0) return gate.wait();
    EXPECT_EQ(read_new(*window, 1, 0, 100, at::kFloat).sum().item<float>(), 200);
    EXPECT_EQ(read_new(*window, 2, 99, 1, at::kFloat).item<float>(), 3);
    has_read.set_value();
  });
}

void test_readers_beside_collectives(const WindowBackend& backend) {
  backend.run(3, [](std::shared_ptr<ProcessGroup> group) {
    constexpr int64_t kNumel = 5003;
    const at::Tensor own = group->allocate(kNumel, at::kFloat);
    own.copy_(window_content(group->rank(), 0, kNumel, at::kFloat));
    const auto window = group->make_window(own, "w");
    group->barrier("written");
    std::vector<std::thread> readers;
    std::vector<int> wrong(3);
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&, i] {
        for (int round = 0; round < 50; ++round) {
          const int rank = (i + round) % 3;
          wrong[i] += !at::equal(read_new(*window, rank, 0, kNumel, at::kFloat),
                                 window_content(rank, 0, kNumel, at::kFloat));
        }
      });
    }
    for (int i = 0; i < 50; ++i) group->barrier();
    for (auto& reader : readers) reader.join();
    EXPECT_EQ(wrong, std::vector<int>({0, 0, 0}));
    group->barrier("read");
  });
}

// After loading a word, a rank sees what its owner wrote before storing it.
void test_words(const WindowBackend& backend) {
  for (const int size : {1, 3}) {
    backend.run(size, [](std::shared_ptr<ProcessGroup> group) {
      const int rank = group->rank();
      const int size = group->size();
      const at::Tensor words = group->allocate(2, at::kLong);
      words.zero_();
      const at::Tensor own = group->allocate(1000, at::kFloat);
      const auto epochs = group->make_window(words, "epochs");
      const auto window = group->make_window(own, "w");
      for (int64_t epoch = 1; epoch <= 20; ++epoch) {
        own.copy_(window_content(rank, static_cast<int>(epoch), 1000, at::kFloat));
        epochs->store(1, epoch);
        const int next = (rank + 1) % size;
        while (epochs->load(next, 1) < epoch) std::this_thread::yield();
        EXPECT_TRUE(at::equal(read_new(*window, next, 0, 1000, at::kFloat),
                              window_content(next, static_cast<int>(epoch), 1000, at::kFloat)));
        epochs->store(0, epoch);  // has read
        while (epochs->load((rank + size - 1) % size, 0) < epoch) std::this_thread::yield();
      }
      EXPECT_EQ(epochs->load(rank, 1), 20);
      group->barrier();
    });
  }
}

void test_ranks_of_the_group(const WindowBackend& backend) {
  backend.run(3, [](std::shared_ptr<ProcessGroup> world) {
    auto pair = world->subgroup({0, 2}, "pair");
    if (pair != nullptr) {
      const at::Tensor own = pair->allocate(1, at::kLong);
      own.fill_(world->rank());
      const auto window = pair->make_window(own, "w");
      EXPECT_EQ(read_new(*window, 1, 0, 1, at::kLong).item<int64_t>(), 2);
      pair->barrier();
    }
  });
}

}  // namespace tessera::internal::testing
