// One rank of a training entry. It reads commands, one per line:
//
//   steps N   trains N steps and answers with one line of JSON
//   counts    on a GPU: trains one step and answers with its kernels, copies and fills
//   checkpoint WHAT DIRECTORY   answers with CheckpointTimes::measure() of WHAT
//   quit      (or the end of input) ends it
//
// With --steps it trains without commands, answers once and ends.
#include <memory>
#include <string>

#include <absl/flags/flag.h>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/bench/macro/entry/process_numbers.h"
#include "tessera/bench/macro/train/task.h"
#include "tessera/bench/macro/train/train_entry.h"
#include "tessera/bench/macro/train/trainer.h"
#include "tessera/examples/memory_compare/device_memory.h"
#include "tessera/examples/program/device_flag.h"
#include "tessera/examples/program/program.h"
#include "tessera/rendezvous.h"

ABSL_FLAG(std::string, model, "A", "A, B, C, S, MLP, gpt2-1k, gpt2-16k or deep-<layers>");
ABSL_FLAG(
    std::string, strategy, "ddp",
    "local (LibTorch alone), ddp, ddp-weights, ddp-noop, ddp-bf16, ddp-powersgd, zero1, zero2, "
    "zero3, zero3-keep, zero1-apart, zero2-apart or "
    "zero3-apart (a copy of the parameters per rank), zero2-in-backward or zero3-in-backward; on a "
    "GPU also ddp-offload, zero1-offload, zero2-offload, zero3-offload");
ABSL_FLAG(
    int, threads, 1,
    "so many threads, which train the batches of as many ranks in this one process; more than "
    "1 with --strategy local only");
ABSL_FLAG(std::string, text, "", "file that the GPTs learn from, of more than 4096 bytes");
ABSL_FLAG(program::DeviceFlag, device, {}, "cpu, cuda or cuda:<index>");
ABSL_FLAG(std::string, backend, "auto", "as ProcessGroupOptions take it");
ABSL_FLAG(bool, bf16, false, "compute in bf16, over fp32 masters");
ABSL_FLAG(bool, graph, false, "forward and backward as a CUDA graph");
ABSL_FLAG(int64_t, steps, 0, "train this many steps without being asked");
ABSL_FLAG(std::string, trace, "", "file for a trace; empty: none");

namespace {

using memory_compare::DeviceMemory;

/// Moves the model to a GPU and returns the bytes that the allocator has given out in addition:
/// those that libraries allocate permanently at first use (cuBLAS).
int64_t move_to_gpu(const bench::Task& task, at::Device device) {
  at::empty({1}, at::TensorOptions(device));  // LibTorch creates its allocator at first use
  int64_t model_bytes = -DeviceMemory::of(device).now_bytes;
  task.model->to(device);
  model_bytes += DeviceMemory::of(device).now_bytes;
  {
    const bench::Batch batch = task.batch(0);
    task.loss({batch.input.to(device), batch.target.to(device)}).backward();
  }
  task.model->zero_grad(/*set_to_none=*/true);
  return DeviceMemory::of(device).now_bytes - model_bytes;
}

void run() {
  const int threads = absl::GetFlag(FLAGS_threads);
  if (threads < 1 || (threads > 1 && absl::GetFlag(FLAGS_strategy) != "local")) {
    throw program::UsageError(
        "--threads: expected 1, or more with --strategy local, which has no other ranks");
  }
  auto world = tessera::init_process_group(
      {.device = absl::GetFlag(FLAGS_device).device, .backend = absl::GetFlag(FLAGS_backend)});
  const at::Device device = world->device();
  at::set_num_threads(threads);
  bench::Answer("idle").add("private_kib", bench::private_kib()).send();
  bench::Task task = bench::make_task(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_text),
                                      world->rank() * threads, world->size() * threads, threads);
  int64_t parameters = 0;
  for (const at::Tensor& parameter : task.model->parameters()) parameters += parameter.numel();
  const int64_t foreign_bytes = device.is_cpu() ? 0 : move_to_gpu(task, device);
  const std::string trace = absl::GetFlag(FLAGS_trace);
  const bench::TrainerOptions trainer_options{
      .strategy = absl::GetFlag(FLAGS_strategy),
      .dtype = absl::GetFlag(FLAGS_bf16) ? at::kBFloat16 : at::kFloat,
      .graph = absl::GetFlag(FLAGS_graph),
      .trace = !trace.empty()};
  const auto trainer = bench::make_trainer(trainer_options, task, world);
  bench::Answer("ready").add("parameters", parameters).send();

  bench::TrainEntry entry(*trainer, task, device, foreign_bytes);
  if (const int64_t steps = absl::GetFlag(FLAGS_steps); steps > 0) {
    entry.steps(steps);
  } else {
    entry.serve();
  }
  if (!trace.empty()) trainer->write_trace(trace);
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "macro_train",
                       .summary = "trains as one rank of an entry of bench/run and answers with "
                                  "the times of its steps. Commands on standard input: 'steps N', "
                                  "'counts' (on a GPU), 'checkpoint WHAT "
                                  "DIRECTORY', 'quit'.",
                       .examples = {"macro_train --model MLP --strategy local --steps 3",
                                    "tessera-run --standalone --nproc-per-node 2 macro_train "
                                    "--model A --text README.md --strategy zero3 --steps 3"}},
                      argc, argv, run);
}
