#include "tessera/examples/memory_compare/measurement.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tessera/examples/gpt/windows.h"
#include "tessera/examples/memory_compare/device_memory.h"
#include "tessera/tessera.h"

namespace memory_compare {
namespace {

using tessera::kMemoryClasses;
using tessera::MemoryBytes;
using tessera::MemoryClass;

constexpr size_t kRankWords = 3 * kMemoryClasses + 6;

tessera::Options options_of(const Configuration& configuration, const Workload& workload) {
  tessera::Options options{
      .strategy = configuration.strategy, .degrees = configuration.degrees, .max_grad_norm = 1.0};
  options.reshard_after_forward = configuration.reshard_after_forward;
  options.share_parameters = !configuration.is_apart;
  if (workload.parameters != c10::ScalarType::Float) {
    options.precision.parameters = workload.parameters;
  }
  return options;
}

gpt::Batch draw(const Workload& workload, at::Generator& generator, at::Device device) {
  const at::Tensor text =
      at::randint(workload.model.vocabulary, {workload.batch, workload.model.context + 1},
                  generator, at::kLong)
          .to(device);
  return {text.narrow(1, 0, workload.model.context), text.narrow(1, 1, workload.model.context)};
}

/// Runs a forward and a backward, and returns the device memory that libraries (cuBLAS) allocate
/// for good when they are first used. It belongs neither to the engine nor to the parameters.
int64_t foreign_device_bytes(const Workload& workload, gpt::Gpt& model, at::Device device) {
  at::empty({1}, at::TensorOptions(device));  // LibTorch makes its allocator on first use
  int64_t parameter_bytes = -DeviceMemory::of(device).now_bytes;
  model.to(device);
  parameter_bytes += DeviceMemory::of(device).now_bytes;
  at::Generator generator = at::detail::createCPUGenerator();
  {
    const gpt::Batch batch = draw(workload, generator, device);
    model.loss(batch.text, batch.target).backward();
  }
  model.zero_grad(/*set_to_none=*/true);
  return DeviceMemory::of(device).now_bytes - parameter_bytes;
}

/// Trains and returns the largest PSS sampled in the last step.
int64_t train(const Workload& workload, gpt::Gpt& model, tessera::Engine& engine, int rank,
              at::Device device) {
  at::Generator generator =
      at::detail::createCPUGenerator(/*seed=*/static_cast<uint64_t>(rank) + 1);
  int64_t pss_bytes = -1;
  for (int64_t step = 1; step <= workload.steps; ++step) {
    if (step == workload.steps && device.is_cuda()) DeviceMemory::restart_peak(device);
    const auto sample = [&] {
      if (step == workload.steps) pss_bytes = std::max(pss_bytes, tessera::process_pss_bytes());
    };
    const gpt::Batch batch = draw(workload, generator, device);
    const at::Tensor loss = model.loss(batch.text, batch.target);
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
  append(words, rank.persistent);
  append(words, rank.peak);
  append(words, rank.held);
  words.insert(words.end(),
               {rank.peak_bytes, rank.pss_bytes, rank.shared_bytes, rank.unsharded_buffers_added,
                rank.device_bytes, rank.device_peak_bytes});
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
    rank.persistent = bytes();
    rank.peak = bytes();
    rank.held = bytes();
    rank.peak_bytes = next();
    rank.pss_bytes = next();
    rank.shared_bytes = next();
    rank.unsharded_buffers_added = next();
    rank.device_bytes = next();
    rank.device_peak_bytes = next();
    return rank;
  }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

}  // namespace

Measurement measure(const Configuration& configuration, const Workload& workload,
                    const std::shared_ptr<tessera::ProcessGroup>& world) {
  torch::manual_seed(1);
  const auto model = std::make_shared<gpt::Gpt>(workload.model);
  Measurement measurement;
  for (const auto& parameter : model->named_parameters()) {
    measurement.parameter_numel += parameter->numel();
    if (gpt::Gpt::decays(parameter.key())) measurement.matrix_numel += parameter->numel();
  }
  const at::Device torch_device = world->device();
  const int64_t foreign_bytes =
      torch_device.is_cuda() ? foreign_device_bytes(workload, *model, torch_device) : 0;
  const auto engine = tessera::parallelize(model, gpt::optimizer_plan(*workload.optimizer, 1e-4, 0),
                                           options_of(configuration, workload), world);

  RankMemory mine;
  mine.persistent = tessera::predicted_memory(*engine, /*micro_steps=*/1);
  mine.peak = tessera::predicted_peak_memory(*engine, /*micro_steps=*/1);
  mine.pss_bytes = train(workload, *model, *engine, world->rank(), torch_device);
  engine->wait();
  mine.shared_bytes = tessera::process_shared_bytes();
  mine.held = engine->memory().now();
  mine.peak_bytes = engine->memory().peak_total_bytes();
  mine.unsharded_buffers_added = engine->gather_counts().unsharded_buffers_added;
  if (torch_device.is_cuda()) {
    const DeviceMemory device = DeviceMemory::of(torch_device);
    mine.device_bytes = device.now_bytes - foreign_bytes;
    mine.device_peak_bytes = device.peak_bytes - foreign_bytes;
  }
  std::vector<int64_t> words;
  append(words, mine);
  const at::Tensor own = torch::tensor(words, at::kLong);
  const at::Tensor all = at::empty({world->size() * own.numel()}, at::kLong);
  world->all_gather_on_host(all, own, "memory");
  words.assign(all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
  Reader reader(words);
  for (int rank = 0; rank < world->size(); ++rank) measurement.ranks.push_back(reader.rank());
  return measurement;
}

size_t largest_rank(const Measurement& measurement) {
  const auto largest = std::max_element(
      measurement.ranks.begin(), measurement.ranks.end(),
      [](const RankMemory& a, const RankMemory& b) { return a.peak.total() < b.peak.total(); });
  return static_cast<size_t>(largest - measurement.ranks.begin());
}

bool is_exact(const Measurement& measurement) {
  return std::all_of(measurement.ranks.begin(), measurement.ranks.end(),
                     [](const RankMemory& rank) {
                       MemoryBytes held = rank.held;
                       held[MemoryClass::kControl] = 0;
                       if (rank.persistent[MemoryClass::kGradientBuffers] == 0)
                         held[MemoryClass::kGradientBuffers] = 0;
                       return held == rank.persistent;
                     });
}

double allocator_error(const Measurement& measurement) {
  double largest = 0.0;
  for (const RankMemory& rank : measurement.ranks) {
    if (rank.device_bytes < 0) continue;
    const auto metered = static_cast<double>(rank.held.total());
    largest = std::max(largest, std::abs(static_cast<double>(rank.device_bytes) - metered) /
                                    std::max(1.0, metered));
  }
  return largest;
}

std::vector<int64_t> to_words(const Measurement& measurement) {
  std::vector<int64_t> words = {measurement.parameter_numel, measurement.matrix_numel,
                                static_cast<int64_t>(measurement.ranks.size())};
  for (const RankMemory& rank : measurement.ranks) append(words, rank);
  return words;
}

Measurement from_words(const std::vector<int64_t>& words) {
  constexpr size_t kHead = 3;
  if (words.size() < kHead || words[2] < 0 ||
      words.size() != kHead + static_cast<size_t>(words[2]) * kRankWords) {
    throw std::invalid_argument(
        "[memory_compare] result: got a cut one, expected a whole one; "
        "see what its process said before");
  }
  Reader reader(words);
  Measurement measurement;
  measurement.parameter_numel = reader.next();
  measurement.matrix_numel = reader.next();
  const int64_t ranks = reader.next();
  for (int64_t rank = 0; rank < ranks; ++rank) measurement.ranks.push_back(reader.rank());
  return measurement;
}

MemoryBytes pytorch_ddp(const Measurement& measurement, const gpt::Optimizer& optimizer) {
  const int64_t numel = measurement.parameter_numel;
  const int64_t others = numel - measurement.matrix_numel;
  const double others_bytes =
      optimizer.others != nullptr ? optimizer.others_state_bytes : optimizer.state_bytes;
  MemoryBytes bytes;
  bytes[MemoryClass::kParameters] = 4 * numel;
  bytes[MemoryClass::kGradients] = 4 * numel;
  bytes[MemoryClass::kGradientBuffers] = 4 * numel;
  bytes[MemoryClass::kOptimizer] =
      std::llround(optimizer.state_bytes * static_cast<double>(measurement.matrix_numel) +
                   others_bytes * static_cast<double>(others));
  return bytes;
}

}  // namespace memory_compare
