// Trains a byte-level GPT on real text, on one rank or many, under any strategy.
//
//   tessera-run --standalone --nproc-per-node 2 build/release/bin/gpt --strategy zero3 --memory
//   build/release/bin/gpt --device cuda --param_dtype bfloat16        on a GPU
//
// Prints progress, the loss on held-out text next to the unigram entropy (the best that a model
// without context could reach), a hash of the parameters (the same for every strategy) and a
// sample. `gpt --help` lists the flags.
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tessera/examples/gpt/batches.h"
#include "tessera/examples/gpt/comm_hook.h"
#include "tessera/examples/gpt/corpus.h"
#include "tessera/examples/gpt/evaluation.h"
#include "tessera/examples/gpt/flags.h"
#include "tessera/examples/gpt/generate.h"
#include "tessera/examples/gpt/loss_log.h"
#include "tessera/examples/gpt/memory_table.h"
#include "tessera/examples/gpt/model.h"
#include "tessera/examples/gpt/optimizer.h"
#include "tessera/examples/gpt/progress.h"
#include "tessera/examples/gpt/rate_curve.h"
#include "tessera/examples/program/program.h"
#include "tessera/tessera.h"
#include "tessera/trace_file.h"

namespace {

using gpt::Batch;
using gpt::Flags;

void require(const absl::Status& status) {
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

/// Forward and backward of one step; returns this rank's mean loss over micro-steps. Collective.
at::Tensor accumulate_gradients(const Flags& flags, gpt::Gpt& model, tessera::Engine& engine,
                                gpt::Batches& batches) {
  at::Tensor sum;
  for (int64_t micro = 0; micro < flags.accumulate; ++micro) {
    std::optional<tessera::Engine::NoSync> local;
    if (flags.no_sync && micro + 1 < flags.accumulate) local.emplace(engine.no_sync());
    const Batch batch = batches.next();
    const at::Tensor loss =
        model.loss(batch.text, batch.target) / static_cast<double>(flags.accumulate);
    engine.scale(loss).backward();
    const at::Tensor wide = loss.detach().to(at::kDouble);
    sum = sum.defined() ? sum + wide : wide;
  }
  return sum;
}

/// Opens the run's directory and, unless --resume=never, loads the run in it. Returns null without
/// --checkpoint. Collective.
std::unique_ptr<tessera::Checkpoints> begin_run(const Flags& flags, tessera::Engine& engine,
                                                const gpt::Batches& batches) {
  if (flags.checkpoint.empty()) return nullptr;
  auto checkpoints = std::make_unique<tessera::Checkpoints>(
      engine, flags.checkpoint,
      tessera::CheckpointsOptions{
          .every = flags.save_every, .keep = flags.keep, .notes = {{"program", "gpt"}}});
  checkpoints->track("data", batches.sampler());
  if (flags.resume.from == gpt::Resume::From::kNothing) {
    checkpoints->start_over();
    return checkpoints;
  }
  tessera::LoadOptions options;
  if (flags.resume.from == gpt::Resume::From::kStep) options.step = flags.resume.step;
  const auto loaded = checkpoints->load(options);
  if (loaded.has_value() && engine.group().rank() == 0) {
    std::printf("goes on from %s, saved by %ld rank%s\n", loaded->path.c_str(), loaded->world,
                loaded->world == 1 ? "" : "s");
  }
  return checkpoints;
}

/// Returns the held-out loss of the averaged weights; nullopt without --ema. Collective.
std::optional<double> averaged_loss(const Flags& flags, gpt::Gpt& model, tessera::Engine& engine,
                                    const gpt::Windows& held_out,
                                    const gpt::EvaluationSize& evaluation,
                                    tessera::ProcessGroup& world) {
  if (!flags.options.average.has_value()) return std::nullopt;
  tessera::Engine::AverageScope average = engine.begin_average();
  const double loss = gpt::held_out_loss(model, held_out, evaluation, world);
  average.end();
  return loss;
}

void write_report(const tessera::Engine& engine, const std::string& path) {
  std::ofstream file(path);
  file << tessera::to_json(engine.report()) << '\n' << std::flush;
  TORCH_CHECK(file.good(), "[gpt] --report: '", path,
              "' does not take the report; make room or give another path");
}

void train(const Flags& flags) {
  absl::StatusOr<gpt::Corpus> read = gpt::Corpus::read(flags.data, flags.data_bytes);
  require(read.status());
  const gpt::Corpus& corpus = *read;

  // init_process_group() must come before anything that initialises CUDA, such as setting a seed.
  tessera::ProcessGroupOptions meeting{.device = flags.device, .backend = flags.backend};
  meeting.timeout = flags.timeout;
  std::shared_ptr<tessera::ProcessGroup> world = tessera::init_process_group(meeting);
  const bool is_first = world->rank() == 0;
  require(corpus.check_size(flags.model.context, flags.batch * world->size()));
  const at::Device device = world->device();
  gpt::Batches batches(gpt::Windows(corpus.training(), flags.model.context, device), flags.batch,
                       world->rank(), world->size());
  const gpt::Windows held_out(corpus.held_out(), flags.model.context, device);
  const gpt::EvaluationSize evaluation = {.sequences = flags.eval_batches * flags.batch,
                                          .batch = flags.batch};

  torch::manual_seed(flags.seed);
  auto model = std::make_shared<gpt::Gpt>(flags.model);
  model->to(device);
  auto engine = tessera::parallelize(
      model, gpt::optimizer_plan(*flags.optimizer, flags.rate.peak, flags.weight_decay),
      flags.options, world);
  if (auto hook = gpt::make_comm_hook(flags.comm_hook, flags.powersgd_rank, flags.powersgd_start)) {
    engine->register_comm_hook(std::move(hook));
  }
  engine->set_schedule([rate = flags.rate](int64_t step) { return rate.at(step); });

  const int64_t tokens_per_step =
      flags.batch * flags.model.context * flags.accumulate * world->size();
  if (is_first) {
    int64_t numel = 0;
    for (const at::Tensor& parameter : model->parameters()) numel += parameter.numel();
    std::printf(
        "%s on %d rank%s: %.2f M parameters, %.1f MiB of text in %ld files, %ld tokens per step\n",
        std::string(to_string(engine->strategy())).c_str(), world->size(),
        world->size() == 1 ? "" : "s", static_cast<double>(numel) / 1e6,
        static_cast<double>(corpus.size_bytes()) / (1 << 20), corpus.files(), tokens_per_step);
  }
  std::optional<tessera::StopRequest> stop;  // so that a job that is asked to end saves first
  if (!flags.checkpoint.empty()) stop.emplace();
  const std::unique_ptr<tessera::Checkpoints> checkpoints = begin_run(flags, *engine, batches);
  const int64_t steps_done = engine->steps();
  gpt::LossLog losses(world, is_first ? flags.losses_out : "", steps_done);
  const bool is_late = flags.options.asynchronous_step.value_or(false);
  std::optional<gpt::Progress> progress;
  if (is_first) {
    progress.emplace(stdout, gpt::Progress::display_of(stdout),
                     gpt::Progress::Options{.steps = flags.rate.steps,
                                            .steps_done = steps_done,
                                            .tokens_per_step = tokens_per_step,
                                            .log_every = flags.log_every});
  }

  for (int64_t step = steps_done + 1; step <= flags.rate.steps; ++step) {
    losses.add(accumulate_gradients(flags, *model, *engine, batches));
    losses.add(engine->step(), is_late);

    const bool is_last = step == flags.rate.steps;
    const bool is_judged = !is_last && flags.eval_every > 0 && step % flags.eval_every == 0;
    // look() waits for the GPU under asynchronous steps, so call it only now and then.
    if (!is_late || step == 1 || step % flags.log_every == 0 || is_judged || is_last) {
      const double loss = losses.look(*engine);
      if (progress)
        progress->report(step, loss, engine->optimizer().param_groups()[0].options().get_lr());
    }
    if (is_judged) {
      const double loss = gpt::held_out_loss(*model, held_out, evaluation, *world);
      if (progress) {
        progress->pause();
        std::printf("held-out loss %.4f after step %ld\n", loss, step);
        progress->resume();
      }
    }
    if (checkpoints != nullptr && checkpoints->after_step(stop->is_requested())) {
      if (progress) progress->pause();
      if (is_first) std::printf("stopped and saved after step %ld\n", engine->steps());
      return;
    }
  }
  if (checkpoints != nullptr) {
    checkpoints->save();
    checkpoints->finish();
  }
  const double held_out_loss = gpt::held_out_loss(*model, held_out, evaluation, *world);
  const std::optional<double> average_loss =
      averaged_loss(flags, *model, *engine, held_out, evaluation, *world);

  // Gradients that are added locally are reduced once.
  const int reductions = flags.no_sync ? 1 : static_cast<int>(flags.accumulate);
  const std::string memory = flags.memory ? gpt::memory_table(*engine, reductions, *world) : "";
  const uint64_t hash = tessera::parameter_hash(*engine);
  if (is_first) {
    std::printf("%s", memory.c_str());
    std::printf("held-out loss    %.6f nats per byte\n", held_out_loss);
    if (average_loss) std::printf("of the average   %.6f nats per byte\n", *average_loss);
    std::printf("unigram entropy  %.6f nats per byte, the least without context\n",
                corpus.unigram_entropy());
    std::printf("parameters       %016lx\n", hash);
  }
  {
    const auto whole = engine->full_parameters();  // so that rank 0 alone can generate
    if (is_first && flags.sampling.new_bytes > 0) {
      std::printf("sample:\n%s\n",
                  gpt::printable(gpt::generate(*model, flags.prompt, flags.sampling)).c_str());
    }
  }
  if (is_first && !flags.report.empty()) write_report(*engine, flags.report);
  if (!flags.trace.empty()) tessera::write_trace(*engine, flags.trace);
}

}  // namespace

int main(int argc, char** argv) {
  return program::run(gpt::about(), argc, argv, [] {
    const Flags flags = gpt::read_flags();
    if (const absl::Status status = gpt::validate(flags); !status.ok()) {
      throw program::UsageError(std::string(status.message()));
    }
    if (!flags.report.empty()) program::require_writable("report", flags.report);
    if (!flags.losses_out.empty()) program::require_writable("losses_out", flags.losses_out);
    if (!flags.trace.empty()) program::require_writable("trace", flags.trace);
    train(flags);
  });
}
