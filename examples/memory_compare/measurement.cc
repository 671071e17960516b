#include "tessera/examples/memory_compare/measurement.h"

#include <algorithm>
#include <stdexcept>

#include "tessera/tessera.h"

namespace memory_compare {
namespace {

using tessera::kMemoryClasses;
using tessera::MemoryBytes;
using tessera::MemoryClass;

constexpr size_t kRankWords = kMemoryClasses + 3;

tessera::Options options_of(const Row& row, const Workload& workload) {
  tessera::Options options{.strategy = row.strategy, .degrees = row.degrees, .max_grad_norm = 1.0};
  options.reshard_after_forward = row.reshard_after_forward;
  options.share_parameters = !row.is_apart;
  if (workload.parameters != c10::ScalarType::Float) {
    options.precision.parameters = workload.parameters;
  }
  return options;
}

/// Trains and returns the largest PSS seen in the last step.
int64_t train(const Workload& workload, gpt::Gpt& model, tessera::Engine& engine, int rank) {
  auto generator = at::detail::createCPUGenerator(/*seed=*/static_cast<uint64_t>(rank) + 1);
  int64_t pss_bytes = -1;
  for (int64_t step = 1; step <= workload.steps; ++step) {
    const auto sample = [&] {
      if (step == workload.steps) pss_bytes = std::max(pss_bytes, tessera::process_pss_bytes());
    };
    const at::Tensor text =
        at::randint(workload.model.vocabulary, {workload.batch, workload.model.context + 1},
                    generator, at::kLong);
    const at::Tensor loss = model.loss(text.narrow(1, 0, workload.model.context),
                                       text.narrow(1, 1, workload.model.context));
    sample();
    loss.backward();
    sample();
    engine.step();
    sample();
  }
  return pss_bytes;
}

void append(std::vector<int64_t>& words, const MemoryBytes& bytes) {
  words.insert(words.end(), bytes.by_class.begin(), bytes.by_class.end());
}

void append(std::vector<int64_t>& words, const RankMemory& rank) {
  append(words, rank.held);
  words.insert(words.end(), {rank.peak_bytes, rank.pss_bytes, rank.slabs_grown});
}

class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& words) : words_(words) {}
  int64_t next() { return words_.at(at_++); }
  MemoryBytes bytes() {
    MemoryBytes bytes;
    for (int64_t& value : bytes.by_class) value = next();
    return bytes;
  }
  RankMemory rank() {
    RankMemory rank;
    rank.held = bytes();
    rank.peak_bytes = next();
    rank.pss_bytes = next();
    rank.slabs_grown = next();
    return rank;
  }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

}  // namespace

Measurement measure(const Row& row, const Workload& workload,
                    const std::shared_ptr<tessera::ProcessGroup>& world) {
  torch::manual_seed(1);
  const auto model = std::make_shared<gpt::Gpt>(workload.model);
  Measurement measurement;
  for (const at::Tensor& parameter : model->parameters()) {
    measurement.parameter_numel += parameter.numel();
  }
  const auto engine = tessera::parallelize(model, torch::optim::AdamWOptions(1e-4),
                                           options_of(row, workload), world);
  measurement.persistent = engine->predicted_memory(/*micro_steps=*/1);
  measurement.peak = engine->predicted_peak_memory(/*micro_steps=*/1);

  RankMemory mine;
  mine.pss_bytes = train(workload, *model, *engine, world->rank());
  mine.held = engine->memory().now();
  mine.peak_bytes = engine->memory().peak_total_bytes();
  mine.slabs_grown = engine->gather_counts().slabs_grown;
  std::vector<int64_t> words;
  append(words, mine);
  const at::Tensor own = torch::tensor(words, at::kLong);
  const at::Tensor all = at::empty({world->size() * own.numel()}, at::kLong);
  world->all_gather(all, own, "memory")->wait();
  words.assign(all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
  Reader reader(words);
  for (int rank = 0; rank < world->size(); ++rank) measurement.ranks.push_back(reader.rank());
  return measurement;
}

bool is_exact(const Measurement& measurement) {
  return std::all_of(measurement.ranks.begin(), measurement.ranks.end(),
                     [&](const RankMemory& rank) {
                       MemoryBytes held = rank.held;
                       held[MemoryClass::kControl] = 0;
                       if (measurement.persistent[MemoryClass::kLanding] == 0)
                         held[MemoryClass::kLanding] = 0;
                       return held == measurement.persistent;
                     });
}

std::vector<int64_t> to_words(const Measurement& measurement) {
  std::vector<int64_t> words = {measurement.parameter_numel,
                                static_cast<int64_t>(measurement.ranks.size())};
  append(words, measurement.persistent);
  append(words, measurement.peak);
  for (const RankMemory& rank : measurement.ranks) append(words, rank);
  return words;
}

Measurement from_words(const std::vector<int64_t>& words) {
  constexpr size_t kHead = 2 + 2 * kMemoryClasses;
  if (words.size() < kHead || words[1] < 0 ||
      words.size() != kHead + static_cast<size_t>(words[1]) * kRankWords) {
    throw std::invalid_argument(
        "[memory_compare] result: got a cut one, expected a whole one; "
        "see what its process said before");
  }
  Reader reader(words);
  Measurement measurement;
  measurement.parameter_numel = reader.next();
  const int64_t ranks = reader.next();
  measurement.persistent = reader.bytes();
  measurement.peak = reader.bytes();
  for (int64_t rank = 0; rank < ranks; ++rank) measurement.ranks.push_back(reader.rank());
  return measurement;
}

MemoryBytes pytorch_ddp(int64_t parameter_numel) {
  MemoryBytes bytes;
  bytes[MemoryClass::kParameters] = 4 * parameter_numel;
  bytes[MemoryClass::kGradients] = 4 * parameter_numel;
  bytes[MemoryClass::kLanding] = 4 * parameter_numel;
  bytes[MemoryClass::kOptimizer] = 8 * parameter_numel;
  return bytes;
}

}  // namespace memory_compare
