// Staging memory, which is reused only after its copies have run, and piece tables.
#include "tessera/optim/cuda/uploads.h"

#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/optim/cuda/device_lists.h"
#include "tessera/tests/optim/cuda/host_kit.h"

namespace tessera::internal::cuda {
namespace {

/// Uploads `value` to `target`.
void upload(const HostKit& kit, Uploads& uploads, const at::Tensor& target, int64_t value) {
  const at::Tensor& memory = uploads.take();
  std::fill_n(memory.mutable_data_ptr<int64_t>(), memory.numel(), value);
  const auto stream = kit.device()->current_stream();
  stream->copy(target, memory);
  uploads.queued(*stream);
}

TEST(Uploads, ReuseOneBufferWhereTheDeviceKeepsUp) {
  const HostKit kit;
  Uploads uploads(kit.device(), 5);
  const at::Tensor target = kit.device()->allocate(5, at::kLong);
  for (int64_t i = 0; i < 10; ++i) {
    upload(kit, uploads, target, i);
    EXPECT_EQ(kit.words(target), std::vector<int64_t>(5, i));
  }
  EXPECT_EQ(uploads.buffers(), 1U);
}

// Negative control: a single buffer would put the last value everywhere.
TEST(Uploads, GrowInsteadOfWaitingAndLoseNothing) {
  const HostKit kit(std::chrono::microseconds(200));
  Uploads uploads(kit.device(), 3);
  std::vector<at::Tensor> targets;
  for (int64_t i = 0; i < 20; ++i) targets.push_back(kit.device()->allocate(3, at::kLong));
  const auto upload_all = [&] {
    for (int64_t i = 0; i < 20; ++i) upload(kit, uploads, targets[static_cast<size_t>(i)], i);
  };
  EXPECT_TRUE(kit.returns_while_device_stands(upload_all));
  EXPECT_EQ(uploads.buffers(), 20U);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(kit.words(targets[static_cast<size_t>(i)]), std::vector<int64_t>(3, i));
  }
  upload_all();
  kit.wait();
  EXPECT_EQ(uploads.buffers(), 20U) << "those that are free are taken again";
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(kit.words(targets[static_cast<size_t>(i)]), std::vector<int64_t>(3, i));
  }
}

TEST(DeviceLists, HoldListsOnTheDevice) {
  const HostKit kit(std::chrono::microseconds(100));
  const std::vector<std::vector<Piece>> lists = {{{0, 64, 1}, {64, 5, 2}}, {}, {{128, 7, 0}}};
  const DeviceLists<Piece> tables(*kit.device(), lists);
  EXPECT_EQ(tables.bytes(), 48);
  kit.wait();
  for (size_t list = 0; list < lists.size(); ++list) {
    ASSERT_EQ(tables.count(list), static_cast<int64_t>(lists[list].size()));
    for (size_t i = 0; i < lists[list].size(); ++i) {
      EXPECT_EQ(tables.items(list)[i].begin, lists[list][i].begin);
      EXPECT_EQ(tables.items(list)[i].numel, lists[list][i].numel);
      EXPECT_EQ(tables.items(list)[i].parameter, lists[list][i].parameter);
    }
  }
  EXPECT_EQ(DeviceLists<Piece>(*kit.device(), {{}, {}}).bytes(), 0);
}

}  // namespace
}  // namespace tessera::internal::cuda
