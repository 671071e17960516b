// The bytes that training sends between hosts (MPI is the fake); see docs/hosts.md, "What crosses
// the wire".
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/parallelize.h"
#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/hosts/mpi_reads.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_hosts.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal::testing {
namespace {

constexpr int64_t kFeatures = 96;  // makes every part of a unit longer than an envelope

torch::nn::Sequential make_model(int layers) {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kFeatures, kFeatures).bias(false)));
  }
  model->to(at::kFloat);
  return model;
}

/// The bytes of all parameters.
constexpr int64_t bytes_of(int layers) { return layers * kFeatures * kFeatures * 4; }
/// The bytes of a rank's vote in step(): nine words, the norm, and the options of SGD.
constexpr int64_t kVoteBytes = (9 + static_cast<int64_t>(ExactSum::kWords) + 1 + 5) * 8;

/// The bytes that all hosts send in `steps` steps per rank.
int64_t sent_in(int steps, int layers, const Options& options,
                const std::vector<int>& host_of_rank) {
  const int64_t before = fake_data_bytes();
  run_mpi_hosts(host_of_rank, [&](const std::shared_ptr<ProcessGroup>& world) {
    auto model = make_model(layers);
    const auto engine = parallelize(model, torch::optim::SGDOptions(1e-3), options, world);
    for (int step = 0; step < steps; ++step) {
      const at::Tensor input = at::ones({2, kFeatures}) * (world->rank() + 1);
      model->forward(input).square().mean().backward();
      engine->step();
    }
  });
  return fake_data_bytes() - before;
}

class HostTrafficOfTraining : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  static constexpr int kFewLayers = 3;
  static constexpr int kManyLayers = 8;

  /// The bytes of parameters and gradients that a later step sends; the first steps send more.
  int64_t of_step(int layers, const Options& options) const {
    const int64_t four = sent_in(4, layers, options, GetParam());
    const int64_t two = sent_in(2, layers, options, GetParam());
    EXPECT_EQ((four - two) % 2, 0);
    return (four - two) / 2 - votes();
  }
  /// The bytes of votes that a step sends.
  int64_t votes() const { return static_cast<int64_t>(GetParam().size()) * kVoteBytes * others(); }
  /// The number of other hosts.
  int64_t others() const { return *std::max_element(GetParam().begin(), GetParam().end()); }
};
INSTANTIATE_TEST_SUITE_P(Hosts, HostTrafficOfTraining,
                         ::testing::Values(hosts_in_order(2, 2), hosts_in_order(3, 2),
                                           hosts_in_order(2, 3)));

/// Under zero3 the model is here one unit, which is still gathered when backward begins.
TEST_P(HostTrafficOfTraining, IsWhatTheFormulaSaysToTheByte) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    Options options;
    options.strategy = strategy;
    EXPECT_EQ(of_step(kFewLayers, options), 2 * bytes_of(kFewLayers) * others())
        << static_cast<int>(strategy);
  }
}

TEST_P(HostTrafficOfTraining, HasHalfTheGradientsInBf16) {
  Options options;
  options.strategy = Strategy::kZero2;
  options.precision.communication = at::kBFloat16;
  EXPECT_EQ(of_step(kFewLayers, options), bytes_of(kFewLayers) * others() * 3 / 2);
}

/// The traffic depends on which units are still gathered, and on whether a rank comes after its
/// host's copy is gone: at least everything once, and at most twice by every rank on its own.
TEST_P(HostTrafficOfTraining, OfUnitsIsBounded) {
  if (!mpi_reads_one_sided()) GTEST_SKIP() << "ranks gather together";
  Options options;
  options.strategy = Strategy::kZero3;
  options.wrap = wrap_by_type<torch::nn::LinearImpl>();
  const int64_t once = bytes_of(kManyLayers) * others();
  const auto locals = static_cast<int64_t>(GetParam().size()) / (others() + 1);
  // Not the difference of_step(): in the shorter run another number of ranks may have come too late
  // for their host's copy.
  const int64_t four = sent_in(4, kManyLayers, options, GetParam());
  const int64_t none = sent_in(0, kManyLayers, options, GetParam());
  EXPECT_LE(four - none, 4 * (once + once * 2 * locals + votes()));
  EXPECT_GE(four - none, 4 * (2 * once + votes()));
}

}  // namespace
}  // namespace tessera::internal::testing
