#include "tessera/bench/macro/train/train_entry.h"

#include <chrono>
#include <iostream>
#include <sstream>
#include <string>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/bench/macro/entry/process_numbers.h"
#include "tessera/bench/macro/train/device_counts.h"
#include "tessera/bench/macro/train/resident_peak.h"
#include "tessera/examples/memory_compare/device_memory.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
using memory_compare::DeviceMemory;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

TrainEntry::TrainEntry(Trainer& trainer, const Task& task, at::Device device, int64_t foreign_bytes)
    : trainer_(trainer), make_batch_(task.batch), device_(device), foreign_bytes_(foreign_bytes) {}

Batch TrainEntry::next() {
  const Batch batch = make_batch_(done_++);
  return {batch.input.to(device_), batch.target.to(device_)};
}

std::vector<double> TrainEntry::time_each(int64_t count, std::vector<double>& losses) {
  std::vector<double> ms;
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = next();
    const auto begin = Clock::now();
    losses.push_back(trainer_.step(batch).item<double>());
    ms.push_back(ms_since(begin));
  }
  return ms;
}

std::vector<double> TrainEntry::time_all(int64_t count, std::vector<double>& losses) {
  std::vector<Batch> batches;
  batches.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) batches.push_back(next());
  trainer_.finish();
  DeviceMemory::restart_peak(device_);
  std::vector<at::Tensor> queued;
  queued.reserve(batches.size());
  const auto begin = Clock::now();
  for (const Batch& batch : batches) queued.push_back(trainer_.step(batch));
  trainer_.finish();
  const double mean_ms = ms_since(begin) / static_cast<double>(count);
  for (const at::Tensor& loss : queued) losses.push_back(loss.item<double>());
  return std::vector<double>(static_cast<size_t>(count), mean_ms);
}

void TrainEntry::steps(int64_t count) {
  std::vector<double> losses;
  const auto before = ProcessNumbers::now();
  const std::vector<double> ms =
      device_.is_cpu() ? time_each(count, losses) : time_all(count, losses);
  const auto after = ProcessNumbers::now();
  Answer answer("steps");
  answer.add("ms", ms)
      .add("loss", losses)
      .add("cpu_ms", after.cpu_ms - before.cpu_ms)
      .add("minor_faults", after.minor_faults - before.minor_faults)
      .add("involuntary_switches", after.involuntary_switches - before.involuntary_switches)
      .add("private_kib", private_kib());
  if (!device_.is_cpu()) {
    const DeviceMemory memory = DeviceMemory::of(device_);
    answer.add("device_bytes", memory.now_bytes - foreign_bytes_)
        .add("device_peak_bytes", memory.peak_bytes)
        .add("formula_bytes", trainer_.formula_bytes());
  }
  answer.send();
}

void TrainEntry::counts() {
  TORCH_CHECK(!device_.is_cpu(),
              "[bench] command: got 'counts' on a CPU, expected it on a GPU only");
  const Batch batch = next();
  const auto seen = DeviceCounts::during(device_, [&] {
    trainer_.step(batch);
    trainer_.finish();
  });
  Answer("counts")
      .add("kernels", seen.kernels)
      .add("copies", seen.copies)
      .add("fills", seen.fills)
      .send();
}

void TrainEntry::checkpoint(const std::string& what, const std::string& directory) {
  TORCH_CHECK(trainer_.engine() != nullptr,
              "[bench] command: got 'checkpoint' under --strategy local, expected an engine");
  if (checkpoint_times_ == nullptr) {
    trainer_.step(next());  // creates the optimizer's state
    checkpoint_times_ =
        std::make_unique<CheckpointTimes>(*trainer_.engine(), [this] { trainer_.step(next()); });
  }
  const ResidentPeak peak;
  const double ms = checkpoint_times_->measure(what, directory);
  Answer("checkpoint")
      .add("ms", ms)
      .add("bytes", checkpoint_times_->bytes())
      .add("grown_kib", peak.growth_kib())
      .send();
}

void TrainEntry::serve() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int64_t count = 0;
    words >> command;
    if (command == "quit") return;
    if (command == "counts") {
      counts();
      continue;
    }
    if (std::string what, directory; command == "checkpoint" && words >> what >> directory) {
      checkpoint(what, directory);
      continue;
    }
    TORCH_CHECK(command == "steps" && words >> count && count > 0, "[bench] command: got '", line,
                "', expected 'steps N', 'counts', 'checkpoint WHAT DIRECTORY' or 'quit'");
    steps(count);
  }
}

}  // namespace bench
