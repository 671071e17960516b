// Kernel memory and number of descriptors of an engine's shared memory.
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal::testing {
namespace {

/// The files behind all ranks' shared memory; ranks are threads of this process.
struct SharedFiles {
  int count = 0;
  int64_t kernel_bytes = 0;
};

SharedFiles shared_files() {
  SharedFiles files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    struct stat status {};
    if (!target.starts_with("/memfd:tessera") || ::stat(entry.path().c_str(), &status) != 0) {
      continue;
    }
    ++files.count;
    files.kernel_bytes += status.st_blocks * 512;
  }
  return files;
}

struct SharedMemoryCase {
  std::string name;
  Options options;
};

/// A strategy, and the width of the matrices that are its units.
using KernelMemoryCase = std::tuple<SharedMemoryCase, int64_t>;

class KernelMemoryTest : public ::testing::TestWithParam<KernelMemoryCase> {};

// Slices of 2.1 MiB (1050) and of 3.96 MiB (1440): neither is a whole number of huge pages.
TEST_P(KernelMemoryTest, IsWhatIsCountedWithAFewDescriptorsForAllUnits) {
  constexpr int kWorld = 2;
  constexpr int kLayers = 12;
  const int64_t width = std::get<1>(GetParam());
  Options options = std::get<0>(GetParam()).options;
  if (options.strategy == Strategy::kZero3) {
    options.wrap = wrap_by_type<torch::nn::LinearImpl>();
  } else {
    options.bucket_bytes = {width * width * 4};
  }
  run_ranks(kWorld, [&](std::shared_ptr<ProcessGroup> world) {
    torch::nn::Sequential model;
    for (int i = 0; i < kLayers; ++i) {
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
    world->barrier();
    const SharedFiles before = shared_files();
    world->barrier();
    const auto engine = parallelize(model, torch::optim::SGDOptions(1e-3), options, world);
    ASSERT_GE(engine->units().size(), kLayers) << "the control: one unit per matrix";
    model->forward(at::ones({1, width})).sum().backward();
    const at::Tensor counted = at::full({1}, engine->memory().now().total(), at::kLong);
    world->all_reduce(counted, ReduceOp::kSum)->wait();
    if (world->rank() == 0) {
      const SharedFiles now = shared_files();
      EXPECT_LE(now.count - before.count, kWorld * 4);
      const auto kernel_bytes = static_cast<double>(now.kernel_bytes - before.kernel_bytes);
      const double ratio = kernel_bytes / static_cast<double>(counted.item<int64_t>());
      EXPECT_LE(ratio, 1.05);
      EXPECT_GE(ratio, 0.5) << "the control: that is the memory which is counted";
    }
    world->barrier();
    engine->step();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, KernelMemoryTest,
    ::testing::Combine(::testing::Values(SharedMemoryCase{"ddp", {.strategy = Strategy::kDdp}},
                                         SharedMemoryCase{"zero1", {.strategy = Strategy::kZero1}},
                                         SharedMemoryCase{"zero2", {.strategy = Strategy::kZero2}},
                                         SharedMemoryCase{"zero3", {.strategy = Strategy::kZero3}},
                                         SharedMemoryCase{"zero3_copies",
                                                          {.strategy = Strategy::kZero3,
                                                           .share_parameters = false}}),
                       ::testing::Values(1050, 1440)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
    });

}  // namespace
}  // namespace tessera::internal::testing
