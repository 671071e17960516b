// Compares the memory of the strategies: trains a small GPT for a few steps under each, each in a
// process of its own (except over MPI), and prints bytes by class, predicted and measured.
//
//   tessera-run --standalone --nproc-per-node 4 build/release/bin/memory_compare --svg memory.svg
//
// `memory_compare --help` lists the flags. Rank 0 prints and writes the files.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>

#include "tessera/environment.h"
#include "tessera/examples/gpt/optimizer.h"
#include "tessera/examples/memory_compare/configuration.h"
#include "tessera/examples/memory_compare/fresh_process.h"
#include "tessera/examples/memory_compare/measurement.h"
#include "tessera/examples/memory_compare/svg_chart.h"
#include "tessera/examples/memory_compare/table.h"
#include "tessera/examples/program/device_flag.h"
#include "tessera/examples/program/program.h"
#include "tessera/examples/program/time_out_flag.h"
#include "tessera/tessera.h"

ABSL_FLAG(program::DeviceFlag, device, {},
          "cpu, cuda (each rank the GPU of its number on its host) or cuda:<index>; on a GPU its "
          "allocator is read, too");
ABSL_FLAG(
    std::string, backend, "auto",
    "what carries data between ranks: auto, loopback, mpi, hosts, shm or nccl; shm lets ranks "
    "share a GPU");
ABSL_FLAG(program::TimeOutFlag, timeout, {}, program::kTimeOutHelp);
ABSL_FLAG(std::string, configurations, "",
          "what to compare, separated by spaces: ddp, zero1, zero2, zero3, zero3:R "
          "(reshard_after_forward), hybrid:p,g,o, hybrid:p,g,o:R, each also with :apart (a copy of "
          "the parameters per rank); default: all that the number of ranks allows");
ABSL_FLAG(int64_t, layers, 6, "blocks of the model");
ABSL_FLAG(int64_t, heads, 8, "attention heads; divides --width");
ABSL_FLAG(int64_t, width, 512, "values per position");
ABSL_FLAG(int64_t, vocabulary, 256, "distinct tokens");
ABSL_FLAG(int64_t, sequence, 64, "tokens per sequence");
ABSL_FLAG(int64_t, batch, 1, "sequences per rank and step");
ABSL_FLAG(int64_t, steps, 3,
          "updates per configuration; the first two make what later ones use again");
ABSL_FLAG(std::string, param_dtype, "float",
          "what the model computes with: float or bfloat16 (over fp32 masters)");
ABSL_FLAG(gpt::OptimizerFlag, optimizer, {}, gpt::optimizer_help());
ABSL_FLAG(std::string, markdown, "", "write the table as Markdown to this file too");
ABSL_FLAG(std::string, svg, "", "write a chart to this file");

namespace {

using memory_compare::Comparison;
using memory_compare::Configuration;
using memory_compare::Measurement;
using memory_compare::Workload;

Workload read_workload() {
  Workload workload;
  workload.model = {.layers = absl::GetFlag(FLAGS_layers),
                    .heads = absl::GetFlag(FLAGS_heads),
                    .width = absl::GetFlag(FLAGS_width),
                    .context = absl::GetFlag(FLAGS_sequence),
                    .vocabulary = absl::GetFlag(FLAGS_vocabulary)};
  workload.batch = absl::GetFlag(FLAGS_batch);
  workload.steps = absl::GetFlag(FLAGS_steps);
  workload.optimizer = absl::GetFlag(FLAGS_optimizer).optimizer;
  std::string problems;
  const auto count = [&](const char* name, int64_t value, int64_t most) {
    if (value >= 1 && value <= most) return;
    absl::StrAppend(&problems, "[memory_compare] --", name, ": got ", value, ", expected 1 to ",
                    most, "\n");
  };
  // No machine holds a model of these sizes, and products of them do not overflow.
  constexpr int64_t kMaxLayers = 10000;
  constexpr int64_t kMax = int64_t{1} << 20;
  count("layers", workload.model.layers, kMaxLayers);
  count("heads", workload.model.heads, kMax);
  count("width", workload.model.width, kMax);
  count("vocabulary", workload.model.vocabulary, kMax);
  count("sequence", workload.model.context, kMax);
  count("batch", workload.batch, kMax);
  count("steps", workload.steps, kMax);
  if (workload.model.heads >= 1 && workload.model.width % workload.model.heads != 0) {
    absl::StrAppend(&problems, "[memory_compare] --width: got ", workload.model.width,
                    ", expected a multiple of --heads ", workload.model.heads, "\n");
  }
  const std::string dtype = absl::GetFlag(FLAGS_param_dtype);
  if (dtype == "bfloat16") {
    workload.parameters = c10::ScalarType::BFloat16;
  } else if (dtype != "float") {
    absl::StrAppend(&problems, "[memory_compare] --param_dtype: got '", dtype,
                    "', expected float or bfloat16\n");
  }
  if (!problems.empty()) problems.pop_back();
  if (!problems.empty()) throw program::UsageError(problems);
  return workload;
}

std::vector<Configuration> read_configurations(int ranks) {
  const std::string text = absl::GetFlag(FLAGS_configurations);
  if (text.empty()) {
    return memory_compare::default_configurations(ranks, absl::GetFlag(FLAGS_device).device.type());
  }
  const absl::StatusOr<std::vector<Configuration>> configurations =
      memory_compare::parse_configurations(text);
  if (!configurations.ok()) {
    throw program::UsageError(std::string(configurations.status().message()));
  }
  if (configurations->empty()) {
    throw program::UsageError(
        "[memory_compare] --configurations: got no configuration, expected at least one");
  }
  return *configurations;
}

void write_file(const std::string& flag, const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool is_written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool is_closed = file != nullptr && std::fclose(file) == 0;
  TORCH_CHECK(is_written && is_closed, "[memory_compare] --", flag, ": got '", path,
              "', which cannot be written; give another path");
}

/// Returns whether init_process_group() will use MPI.
bool is_over_mpi(const tessera::Environment& job) {
  std::string backend = absl::GetFlag(FLAGS_backend);
  if (backend == "auto") {
    backend = tessera::process_environment("TESSERA_BACKEND").value_or(backend);
  }
  if (backend != "auto") return backend == "mpi" || backend == "hosts";
  const bool has_hosts = job.is_of_scheduler() && (!job.is_one_host() || !job.host.empty());
  return has_hosts && absl::GetFlag(FLAGS_device).device.is_cpu();
}

std::shared_ptr<tessera::ProcessGroup> meet(const std::string& store_url) {
  tessera::ProcessGroupOptions options{.device = absl::GetFlag(FLAGS_device).device,
                                       .backend = absl::GetFlag(FLAGS_backend)};
  options.timeout = absl::GetFlag(FLAGS_timeout).timeout;
  options.store_url = store_url;
  return tessera::init_process_group(options);
}

/// Measures each configuration in a fresh child process of every rank. These children meet as the
/// ranks of a world of their own.
std::vector<Measurement> measure_apart(const std::vector<Configuration>& configurations,
                                       const Workload& workload, const tessera::Environment& job) {
  const bool has_path = !job.store_url.empty() && !tessera::is_tcp_url(job.store_url);
  std::vector<Measurement> measurements;
  for (size_t i = 0; i < configurations.size(); ++i) {
    const std::vector<int64_t> words = memory_compare::run_in_fresh_process([&] {
      const auto world =
          meet(has_path ? absl::StrCat(job.store_url, ".configuration", i) : std::string());
      return to_words(memory_compare::measure(configurations[i], workload, world));
    });
    measurements.push_back(memory_compare::from_words(words));
  }
  return measurements;
}

/// Measures one configuration after the other in this process, because MPI can be initialised only
/// once. So the process's memory includes what earlier configurations left behind, and is not
/// reported.
std::vector<Measurement> measure_in_turn(const std::vector<Configuration>& configurations,
                                         const Workload& workload) {
  const auto world = meet("");
  std::vector<Measurement> measurements;
  for (const Configuration& configuration : configurations) {
    measurements.push_back(memory_compare::measure(configuration, workload, world));
    for (memory_compare::RankMemory& rank : measurements.back().ranks) {
      rank.pss_bytes = -1;
      rank.shared_bytes = -1;
    }
  }
  return measurements;
}

void compare() {
  const tessera::Environment job = program::read_job();
  Comparison comparison{.workload = read_workload(), .ranks = job.world_size, .configurations = {}};
  const std::vector<Configuration> configurations = read_configurations(job.world_size);
  const std::string markdown = absl::GetFlag(FLAGS_markdown);
  const std::string svg = absl::GetFlag(FLAGS_svg);
  if (!markdown.empty()) program::require_writable("markdown", markdown);
  if (!svg.empty()) program::require_writable("svg", svg);
  const std::vector<Measurement> measurements =
      is_over_mpi(job) ? measure_in_turn(configurations, comparison.workload)
                       : measure_apart(configurations, comparison.workload, job);
  for (size_t i = 0; i < configurations.size(); ++i) {
    comparison.configurations.push_back({configurations[i], measurements[i]});
  }
  if (job.rank != 0) return;
  std::printf("%s", to_table(comparison, memory_compare::TableFormat::kAligned).c_str());
  if (!markdown.empty()) {
    write_file("markdown", markdown, to_table(comparison, memory_compare::TableFormat::kMarkdown));
  }
  if (!svg.empty()) {
    write_file("svg", svg, to_svg(to_chart(comparison)));
    std::printf("chart: %s\n", svg.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "memory_compare",
                       .summary = "compares the memory of all strategies on one model.",
                       .examples = {"tessera-run --standalone --nproc-per-node 4 memory_compare "
                                    "--svg memory.svg",
                                    "tessera-run --standalone --nproc-per-node 4 memory_compare "
                                    "--optimizer muon"}},
                      argc, argv, compare);
}
