// Finding the module, the errors if it is missing or of another version, and the built one's code.
#include "tessera/optim/cuda/api.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal::cuda {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<const Api>> load(std::optional<std::string> path) {
  return load_api([path](const char* name) {
    return std::string(name) == "TESSERA_CUDA_MODULE" ? path : std::nullopt;
  });
}

std::string error_of(const std::string& path) {
  const auto api = load(path);
  return api.ok() ? "none" : std::string(api.status().message());
}

TEST(CudaApi, AMissingModuleIsNamedWithItsRemedy) {
  EXPECT_THAT(
      error_of("/no/such/libtessera_cuda.so"),
      AllOf(HasSubstr("[cuda] module: got none, looked for '/no/such/libtessera_cuda.so' as "
                      "TESSERA_CUDA_MODULE says"),
            HasSubstr("cannot open shared object file"),
            HasSubstr("expected Tessera's module for GPUs; build Tessera where CMake finds "
                      "nvcc"),
            HasSubstr("set TESSERA_CUDA_MODULE to the path")));
}

TEST(CudaApi, ALibraryThatLacksEntryPointsNamesThemAll) {
  EXPECT_THAT(
      error_of("libm.so.6"),
      HasSubstr("/libm.so.6' without tessera_cuda_interface_version, "
                "tessera_cuda_error_text, tessera_cuda_zero, tessera_cuda_accumulate, "
                "tessera_cuda_cast, tessera_cuda_count_non_finite, tessera_cuda_add_squares, "
                "tessera_cuda_normalize, tessera_cuda_decide, tessera_cuda_update_loss_scale, "
                "tessera_cuda_advance, tessera_cuda_update, expected Tessera's module for GPUs; "));
}

TEST(CudaApi, AModuleOfAnotherVersionIsNamedWithBothVersions) {
  EXPECT_THAT(error_of(OTHER_CUDA_MODULE_PATH),
              AllOf(HasSubstr("[cuda] module: got interface -7 at '"), HasSubstr("cuda_other"),
                    HasSubstr("', expected interface 4; build Tessera where CMake finds nvcc")));
}

void expect_refusals(const Api& api) {
  const auto no_dtype = static_cast<Dtype>(9);
  EXPECT_EQ(api.accumulate(nullptr, nullptr, no_dtype, 1, nullptr), kRefusedDtype);
  EXPECT_EQ(api.cast(nullptr, no_dtype, nullptr, 1, nullptr), kRefusedDtype);
  EXPECT_EQ(api.add_squares(nullptr, no_dtype, nullptr, 1, nullptr, nullptr), kRefusedDtype);
  EXPECT_EQ(api.count_non_finite(nullptr, no_dtype, nullptr, 1, nullptr, nullptr), kRefusedDtype);
  EXPECT_EQ(api.accumulate(nullptr, nullptr, Dtype::kFloat, -1, nullptr), kRefusedArgument);
  EXPECT_EQ(api.update(nullptr, nullptr), kRefusedArgument);
  EXPECT_EQ(api.advance(nullptr, nullptr), kRefusedArgument);
  EXPECT_EQ(api.decide(nullptr, nullptr), kRefusedArgument);
  DecideArguments too_many_ranks = {};
  too_many_ranks.world_size = kMaxRanks + 1;
  EXPECT_EQ(api.decide(&too_many_ranks, nullptr), kRefusedArgument);
  UpdateArguments arguments = {};
  arguments.gradient_dtype = no_dtype;
  EXPECT_EQ(api.update(&arguments, nullptr), kRefusedDtype);
  arguments = {};
  arguments.rule = static_cast<Rule>(99);
  EXPECT_EQ(api.update(&arguments, nullptr), kRefusedArgument);
  EXPECT_STREQ(api.error_text(kRefusedDtype), "the dtype is none of Float, BFloat16 and Half");
  EXPECT_STREQ(api.error_text(kRefusedArgument), "an argument is null, negative or out of range");
}

// The fake module, which tests run on any machine.
TEST(FakeModule, HasTheInterfaceOfTheModule) {
  const auto loaded = load(FAKE_KERNELS_PATH);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->interface_version(), kInterfaceVersion);
  expect_refusals(**loaded);
}

TEST(FakeModule, RunsTheNullStreamInTheCall) {
  const auto loaded = load(FAKE_KERNELS_PATH);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  int64_t words[3] = {7, 7, 7};
  EXPECT_EQ((*loaded)->zero(words, 2 * sizeof(int64_t), nullptr), 0);
  EXPECT_EQ(words[0] + words[1], 0);
  EXPECT_EQ(words[2], 7);
}

#ifdef CUDA_MODULE_PATH

TEST(CudaModule, ExportsEveryEntryPoint) {
  const auto api = load(CUDA_MODULE_PATH);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_THAT((*api)->path, EndsWith("libtessera_cuda.so"));
  EXPECT_EQ((*api)->interface_version(), kInterfaceVersion);
  EXPECT_NE((*api)->update, nullptr);
}

TEST(CudaModule, IsFoundBesideThePrograms) {
  const auto api = load(std::nullopt);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->path, CUDA_MODULE_PATH);
}

// Calls that need no driver.
TEST(CudaModule, RefusesArgumentsBeforeTheDriverIsAsked) {
  const auto loaded = load(CUDA_MODULE_PATH);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  expect_refusals(**loaded);
  EXPECT_STREQ((*loaded)->error_text(2), "out of memory") << "as the CUDA runtime says";
}

TEST(CudaModule, AnEmptyLaunchIsNone) {
  const auto loaded = load(CUDA_MODULE_PATH);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Api& api = **loaded;
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kBFloat16, Dtype::kHalf}) {
    EXPECT_EQ(api.accumulate(nullptr, nullptr, dtype, 0, nullptr), 0);
    EXPECT_EQ(api.cast(nullptr, dtype, nullptr, 0, nullptr), 0);
    EXPECT_EQ(api.add_squares(nullptr, dtype, nullptr, 0, nullptr, nullptr), 0);
    EXPECT_EQ(api.count_non_finite(nullptr, dtype, nullptr, 0, nullptr, nullptr), 0);
  }
}

#endif

}  // namespace
}  // namespace tessera::internal::cuda
