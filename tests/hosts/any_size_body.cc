// The body of ranks that end with one hash of the parameters for any number of ranks and hosts: 8
// micro-batches per step under Reproducible::kAnyWorldSize. jobs.sh and worlds.sh start this
// program.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/equivalence/any_world_size.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal::testing {
namespace {

std::string hash_after(const AnySizeRun& run, const Configuration& configuration,
                       const std::shared_ptr<ProcessGroup>& world) {
  const std::shared_ptr<Net> net =
      prepare(run.subject.make(), run.dtype, 42 + static_cast<uint64_t>(world->rank()));
  const auto engine = engine_of(run, configuration, net, world);
  std::vector<double> norms;
  train_steps(run, *engine, *net, 0, kAnySizeSteps, norms);
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, parameter_hash(*engine));
  return text;
}

/// Prints the hash at the end of all rows, and that of a run whose order of sums depends on the
/// world.
void train_any_size() {
  const auto world = join();
  at::set_num_threads(1);
  AnySizeRun run{.subject = {.name = "Dropping",
                             .make = [] { return std::make_shared<Dropping>(); },
                             .input_shape = {7},
                             .target_shape = {5}}};
  const std::string expected = hash_after(run, configuration_of(Strategy::kDdp), world);
  const std::vector<Configuration> rows = rows_of(world->size());
  for (const Configuration& configuration : rows) {
    EXPECT_EQ(hash_after(run, configuration, world), expected) << configuration;
  }
  run.reproducible = Reproducible::kOneWorldSize;
  const std::string other = hash_after(run, configuration_of(Strategy::kDdp), world);
  if (world->rank() == 0) {
    say("over " + std::string(world->backend()) + ", " + std::to_string(world->size()) +
        " ranks: " + std::to_string(rows.size()) + " rows end with " + expected);
    say("in the world's order " + other);
  }
}
const RankProcessBody kTrainAnySize("hosts_any_size", train_any_size);

}  // namespace
}  // namespace tessera::internal::testing
