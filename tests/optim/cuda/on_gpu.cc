// Compares every kernel of libtessera_cuda.so on a GPU with its body on the CPU, bit for bit.
// Registered only if there is a GPU.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/flat_layout.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/optim/cuda/step_bodies.h"
#include "tessera/optim/cuda/update_body.h"
#include "tessera/tests/optim/cuda/adamw_launch.h"
#include "tessera/tests/optim/cuda/emulation.h"
#include "tessera/tests/optim/cuda/same_bits.h"

namespace tessera::internal::cuda {
namespace {

const Api& api() {
  static const auto loaded = load_api([](const char* name) {
    const char* given = std::getenv(name);
    return given != nullptr ? given : CUDA_MODULE_PATH;
  });
  TORCH_CHECK(loaded.ok(), loaded.status().message());
  return **loaded;
}

void require(int status) { TORCH_CHECK(status == 0, api().error_text(status)); }
void require(cudaError_t status) { require(static_cast<int>(status)); }

/// An array on the device after `offset` elements of other data.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values, size_t offset = 0)
      : numel_(values.size()), offset_(offset) {
    require(cudaMalloc(&memory_, (numel_ + offset_ + 1) * sizeof(T)));
    require(cudaMemcpy(data(), values.data(), numel_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { static_cast<void>(cudaFree(memory_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(memory_) + offset_; }
  std::vector<T> read() {
    std::vector<T> values(numel_);
    require(cudaMemcpy(values.data(), data(), numel_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* memory_ = nullptr;
  size_t numel_;
  size_t offset_;
};

template <typename T>
std::vector<T> random_values(int64_t numel, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values;
  for (int64_t i = 0; i < numel; ++i) {
    values.push_back(narrow<T>(std::ldexp(normal(random), static_cast<int>(random() % 9) - 4)));
  }
  return values;
}

template <typename T>
constexpr Dtype kDtype = Dtype::kFloat;
template <>
constexpr Dtype kDtype<BFloat16> = Dtype::kBFloat16;
template <>
constexpr Dtype kDtype<Half> = Dtype::kHalf;

const std::vector<int64_t> kNumels = {1, 63, 130, 64, 1000003, 65};

std::vector<Piece> pieces() {
  const FlatLayout layout(c10::kFloat, kNumels, 1);
  return cut_into_pieces(layout.segments({0, layout.numel()}));
}
int64_t numel() { return FlatLayout(c10::kFloat, kNumels, 1).numel(); }

template <typename T>
class OnGpu : public ::testing::Test {};
using Dtypes = ::testing::Types<float, BFloat16, Half>;
TYPED_TEST_SUITE(OnGpu, Dtypes);

TYPED_TEST(OnGpu, AdamwGivesTheBitsOfTheCpu) {
  const std::vector<Piece> parts = pieces();
  const AdamwCoefficients coefficients = {0.7, 0.999, 0.9, 0.999, 3e-3, 0.3, 1e-8};
  std::vector<ParameterUpdate> updates(kNumels.size(), update_by(coefficients));
  const std::vector<StatePlaces> places = places_of(parts);
  updates[2].applies = 0;
  for (size_t offset = 0; offset < 4; ++offset) {
    std::vector<float> values = random_values<float>(numel(), 1);
    std::vector<TypeParam> gradient = random_values<TypeParam>(numel(), 2);
    std::vector<float> moment1 = random_values<float>(numel(), 3);
    std::vector<float> moment2 = random_values<float>(numel(), 4);
    for (float& value : moment2) value = std::abs(value);
    std::vector<TypeParam> target(values.size(), narrow<TypeParam>(5.0F));

    DeviceArray<Piece> device_pieces(parts);
    DeviceArray<ParameterUpdate> device_updates(updates);
    DeviceArray<float> device_values(values, offset);
    DeviceArray<TypeParam> device_gradient(gradient, offset);
    DeviceArray<float> device_moment1(moment1, offset);
    DeviceArray<float> device_moment2(moment2, offset);
    DeviceArray<TypeParam> device_target(target, offset);
    DeviceArray<StatePlaces> device_places(places);
    const UpdateArguments arguments = {Rule::kAdamw,
                                       device_pieces.data(),
                                       static_cast<int64_t>(parts.size()),
                                       device_places.data(),
                                       device_updates.data(),
                                       device_values.data(),
                                       device_gradient.data(),
                                       {device_moment1.data(), device_moment2.data(), nullptr},
                                       device_target.data(),
                                       kDtype<TypeParam>,
                                       kDtype<TypeParam>};
    require(api().update(&arguments, nullptr));

    const UpdateArrays<AdamwRule, TypeParam, TypeParam> arrays = {
        values.data(), gradient.data(), {moment1.data(), moment2.data(), nullptr}, target.data()};
    update_body(arrays,
                {parts.data(), places.data(), static_cast<int64_t>(parts.size()), updates.data()},
                {0, 1}, {0, 1});
    EXPECT_TRUE(same_bits(device_values.read(), values)) << offset;
    EXPECT_TRUE(same_bits(device_moment1.read(), moment1)) << offset;
    EXPECT_TRUE(same_bits(device_moment2.read(), moment2)) << offset;
    EXPECT_TRUE(same_bits(device_target.read(), target)) << offset;
  }
}

TYPED_TEST(OnGpu, AccumulateAndCastGiveTheBitsOfTheCpu) {
  for (size_t offset = 0; offset < 4; ++offset) {
    const std::vector<TypeParam> gradient = random_values<TypeParam>(100003, 2);
    std::vector<float> sum = random_values<float>(100003, 3);
    std::vector<TypeParam> cast(sum.size());
    DeviceArray<TypeParam> device_gradient(gradient, offset);
    DeviceArray<float> device_sum(sum, offset);
    DeviceArray<TypeParam> device_cast(cast, offset);
    require(api().accumulate(device_sum.data(), device_gradient.data(), kDtype<TypeParam>,
                             static_cast<int64_t>(sum.size()), nullptr));
    require(api().cast(device_cast.data(), kDtype<TypeParam>, device_sum.data(),
                       static_cast<int64_t>(sum.size()), nullptr));
    accumulate_body(sum.data(), gradient.data(), static_cast<int64_t>(sum.size()), {0, 1});
    cast_body(cast.data(), sum.data(), static_cast<int64_t>(sum.size()), {0, 1});
    EXPECT_TRUE(same_bits(device_sum.read(), sum)) << offset;
    EXPECT_TRUE(same_bits(device_cast.read(), cast)) << offset;
  }
}

TYPED_TEST(OnGpu, SquaresGiveTheWordsOfTheCpu) {
  const std::vector<Piece> parts = pieces();
  const std::vector<TypeParam> gradient = random_values<TypeParam>(numel(), 2);
  DeviceArray<Piece> device_pieces(parts);
  DeviceArray<TypeParam> device_gradient(gradient);
  DeviceArray<int64_t> words(std::vector<int64_t>(kExactWords, 7));
  require(api().zero(words.data(), kExactWords * sizeof(int64_t), nullptr));
  require(api().add_squares(device_gradient.data(), kDtype<TypeParam>, device_pieces.data(),
                            static_cast<int64_t>(parts.size()), words.data(), nullptr));
  require(api().normalize(words.data(), nullptr));
  PlainWords sink;
  square_body(gradient.data(), parts.data(), static_cast<int64_t>(parts.size()), {0, 1}, {0, 1},
              SerialLanes(), sink);
  exact_normalize(sink.words.data());
  EXPECT_EQ(words.read(), sink.words);
}

TYPED_TEST(OnGpu, CountsWhatIsNotFinitePerParameter) {
  const FlatLayout layout(c10::kFloat, kNumels, 1);
  const std::vector<Piece> parts = pieces();
  std::vector<TypeParam> gradient = random_values<TypeParam>(numel(), 2);
  const auto spoil = [&](size_t parameter, int64_t at) {
    gradient[static_cast<size_t>(layout.parameter_range(parameter).begin + at)] =
        narrow<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  };
  spoil(0, 0);
  spoil(2, 129);
  for (const int64_t at : {0, 1, 500000, 1000002}) spoil(4, at);
  for (size_t offset = 0; offset < 4; ++offset) {
    DeviceArray<Piece> device_pieces(parts);
    DeviceArray<TypeParam> device_gradient(gradient, offset);
    DeviceArray<int64_t> counts(std::vector<int64_t>{0, 7, 1, 0, 0, 0});
    require(api().count_non_finite(device_gradient.data(), kDtype<TypeParam>, device_pieces.data(),
                                   static_cast<int64_t>(parts.size()), counts.data(), nullptr));
    EXPECT_EQ(counts.read(), (std::vector<int64_t>{1, 7, 2, 0, 4, 0})) << offset;
  }
}

/// The sums of three ranks: 3 parameters, the last unused.
std::vector<int64_t> step_sums() {
  PlainWords sink;
  ExactWindow window;
  for (const double term : {1e10, 3.25, 1e-9, 7e4}) window.add(term, sink);
  window.flush(sink);
  exact_normalize(sink.words.data());
  std::vector<int64_t> words = sink.words;
  words.resize(static_cast<size_t>(step_words(3)), 0);
  for (int piece = 0; piece < kAgreementPieces; ++piece) {
    const int64_t bits = (int64_t{1} << kAgreementBits) - 1 - piece;
    words[static_cast<size_t>(kAgreementAt + 2 * piece)] = 3 * bits;
    words[static_cast<size_t>(kAgreementAt + 2 * piece + 1)] = 3 * bits * bits;
  }
  words[static_cast<size_t>(used_at(3))] = 3;
  words[static_cast<size_t>(used_at(3) + 1)] = 1;
  return words;
}

TEST(OnGpuStep, OutcomeAdvanceAndLossScaleAreTheBodies) {
  const std::vector<GroupNumbers> groups = {numbers_of({1e-2, 0.9, 0.999, 1e-8, 0.1}),
                                            numbers_of({3e-3, 0.8, 0.99, 1e-8, 0.0})};
  const std::vector<int32_t> group_of = {0, 1, 1};
  std::vector<int64_t> steps = {0, 12345, 7};
  std::vector<ParameterUpdate> updates(3);
  LossScaleState scale = {1024.0, 2};
  const LossScaleRule rule = {2.0, 0.5, 3};
  // Unchanged, and with each reason against the step.
  for (const int64_t changed : {int64_t{-1}, kNonFiniteAt + 1, kRefusalsAt, kAgreementAt,
                                kAgreementAt + 3, kAgreementAt + 4}) {
    std::vector<int64_t> words = step_sums();
    if (changed >= 0) words[static_cast<size_t>(changed)] += 1;
    DeviceArray<int64_t> device_words(words);
    DeviceArray<LossScaleState> device_scale(std::vector<LossScaleState>{scale});
    DeviceArray<StepOutcome> device_outcome(std::vector<StepOutcome>(1));
    DeviceArray<GroupNumbers> device_groups(groups);
    DeviceArray<int32_t> device_group_of(group_of);
    DeviceArray<int64_t> device_steps(steps);
    DeviceArray<ParameterUpdate> device_updates(updates);
    const DecideArguments decide = {device_words.data(), 3,   3,
                                    device_scale.data(), 1.0, device_outcome.data()};
    require(api().decide(&decide, nullptr));
    const AdvanceArguments on_device = {3,
                                        device_words.data() + used_at(3),
                                        device_group_of.data(),
                                        device_groups.data(),
                                        device_outcome.data(),
                                        device_steps.data(),
                                        device_updates.data()};
    require(api().advance(&on_device, nullptr));
    require(api().update_loss_scale(device_scale.data(), rule, device_outcome.data(), nullptr));

    const DecideArguments decide_here = {words.data(), 3, 3, &scale, 1.0, nullptr};
    const StepOutcome outcome = decide_body(decide_here, non_finite_share(decide_here, {0, 1}));
    EXPECT_EQ(outcome.applies, changed < 0 ? 1 : 0);
    const AdvanceArguments here = {3,
                                   words.data() + used_at(3),
                                   group_of.data(),
                                   groups.data(),
                                   &outcome,
                                   steps.data(),
                                   updates.data()};
    advance_body(here, {0, 1});
    scale = loss_scale_body(scale, rule, outcome);
    EXPECT_EQ(device_steps.read(), steps);
    EXPECT_TRUE(same_bits(device_updates.read(), updates)) << changed;
    EXPECT_TRUE(same_bits(device_outcome.read(), std::vector<StepOutcome>{outcome})) << changed;
    EXPECT_EQ(device_scale.read().front().scale, scale.scale);
    EXPECT_EQ(device_scale.read().front().good_steps, scale.good_steps);
  }
}

// More counts than a block has threads.
TEST(OnGpuStep, DecideAddsUpTheCountsOfALargeTable) {
  constexpr int64_t kParameters = 5000;
  std::vector<int64_t> words(static_cast<size_t>(step_words(kParameters)), 0);
  for (int64_t i = 0; i < kParameters; i += 7) words[static_cast<size_t>(kNonFiniteAt + i)] = i;
  DeviceArray<int64_t> device_words(words);
  DeviceArray<StepOutcome> device_outcome(std::vector<StepOutcome>(1));
  const DecideArguments decide = {device_words.data(),  kParameters, 1, nullptr, 1.0,
                                  device_outcome.data()};
  require(api().decide(&decide, nullptr));
  const DecideArguments here = {words.data(), kParameters, 1, nullptr, 1.0, nullptr};
  EXPECT_EQ(device_outcome.read().front().non_finite, non_finite_share(here, {0, 1}));
}

TEST(OnGpuStep, NegativeControlAnotherGradientIsNoticed) {
  const std::vector<float> zeros(1000, 0.0F);
  DeviceArray<float> sum(zeros);
  DeviceArray<float> gradient(std::vector<float>(1000, 0.5F));
  require(api().accumulate(sum.data(), gradient.data(), Dtype::kFloat, 999, nullptr));
  const std::vector<float> got = sum.read();
  EXPECT_FALSE(same_bits(got, zeros));
  EXPECT_EQ(got[998], 0.5F);
  EXPECT_EQ(got[999], 0.0F) << "beyond the end";
}

}  // namespace
}  // namespace tessera::internal::cuda
