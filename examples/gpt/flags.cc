#include "tessera/examples/gpt/flags.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <absl/flags/flag.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/types/optional.h>

#include "tessera/examples/program/device_flag.h"
#include "tessera/examples/program/time_out_flag.h"
#include "tessera/option_list.h"

namespace {

std::string strategy_help() {
  std::vector<std::string> rows;
  for (const tessera::StrategyName& row : tessera::strategy_names()) {
    rows.push_back(absl::StrCat(std::string(row.name), ": ", std::string(row.summary)));
  }
  return absl::StrCat(tessera::option_doc("strategy"), "; ", absl::StrJoin(rows, "; "));
}

/// A dtype on the command line.
struct Dtype {
  c10::ScalarType type = c10::ScalarType::Float;
};

bool AbslParseFlag(absl::string_view text, Dtype* dtype, std::string* error) {
  for (const auto& [name, type] : {std::pair("float", c10::ScalarType::Float),
                                   std::pair("bfloat16", c10::ScalarType::BFloat16),
                                   std::pair("float16", c10::ScalarType::Half)}) {
    if (text != name) continue;
    dtype->type = type;
    return true;
  }
  *error = absl::StrCat("got '", text, "', expected float, bfloat16 or float16");
  return false;
}

std::string AbslUnparseFlag(const Dtype& dtype) {
  return dtype.type == c10::ScalarType::Float      ? "float"
         : dtype.type == c10::ScalarType::BFloat16 ? "bfloat16"
                                                   : "float16";
}

/// Further fields of tessera::Options on the command line: "offload=optimizer,prefetch=true".
struct OptionTexts {
  std::string text;
};

std::string apply(const OptionTexts& given, tessera::Options& options) {
  for (const absl::string_view part : absl::StrSplit(given.text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::Status status = tessera::set_option(options, field.first, field.second);
    if (!status.ok()) return std::string(status.message());
  }
  return "";
}

bool AbslParseFlag(absl::string_view text, OptionTexts* flag, std::string* error) {
  flag->text = std::string(text);
  tessera::Options scratch;
  *error = apply(*flag, scratch);
  return error->empty();
}

std::string AbslUnparseFlag(const OptionTexts& flag) { return flag.text; }

/// Resume on the command line.
struct ResumeFlag {
  gpt::Resume resume;
};

bool AbslParseFlag(absl::string_view text, ResumeFlag* flag, std::string* error) {
  using From = gpt::Resume::From;
  flag->resume = {text == "auto" ? From::kNewest : text == "never" ? From::kNothing : From::kStep};
  if (flag->resume.from != From::kStep) return true;
  if (absl::SimpleAtoi(text, &flag->resume.step) && flag->resume.step >= 0) return true;
  *error = absl::StrCat("got '", text, "', expected auto, never or the number of a step");
  return false;
}

std::string AbslUnparseFlag(const ResumeFlag& flag) {
  using From = gpt::Resume::From;
  return flag.resume.from == From::kNewest    ? "auto"
         : flag.resume.from == From::kNothing ? "never"
                                              : absl::StrCat(flag.resume.step);
}

/// Returns the folder of LibTorch's headers, a text that every machine has: in TESSERA_TORCH if
/// that is set, otherwise of the LibTorch that this was built with.
std::string default_data() {
  const char* torch = std::getenv("TESSERA_TORCH");
  return torch != nullptr && *torch != '\0' ? absl::StrCat(torch, "/include")
                                            : TESSERA_TORCH_INCLUDE;
}

}  // namespace

ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, strategy_help());
ABSL_FLAG(absl::optional<tessera::Degrees>, degrees, {},
          absl::StrCat(tessera::option_doc("degrees"), ", as in 2,2,4"));
ABSL_FLAG(int, reshard_after_forward, 0,
          absl::StrCat(tessera::option_doc("reshard_after_forward"),
                       "; 0: over as many as before"));
ABSL_FLAG(OptionTexts, options, {},
          "further fields of tessera::Options (docs/options.md), as in "
          "max_grad_value=0.5,reorder_reductions=false");
ABSL_FLAG(program::DeviceFlag, device, {},
          "cpu, cuda (each rank the GPU of its number on its host) or cuda:<index>");
ABSL_FLAG(std::string, backend, "auto",
          "what carries data between ranks: auto, loopback, shm or nccl; shm lets ranks share a "
          "GPU");
ABSL_FLAG(program::TimeOutFlag, timeout, {}, program::kTimeOutHelp);
ABSL_FLAG(Dtype, param_dtype, {},
          "what the model computes with: float, bfloat16 or float16; the optimizer's values are "
          "fp32 always");
ABSL_FLAG(bool, loss_scale, false, tessera::option_doc("loss_scale"));
ABSL_FLAG(int64_t, layers, 4, "blocks of the model");
ABSL_FLAG(int64_t, heads, 4, "attention heads; divides --width");
ABSL_FLAG(int64_t, width, 128, "values per position");
ABSL_FLAG(int64_t, context, 128, "bytes the model looks back, and length of a sequence");
ABSL_FLAG(
    std::string, data, "",
    "text to train on: a file or a directory, all files below it; default: the C++ headers of "
    "LibTorch");
ABSL_FLAG(int64_t, data_bytes, int64_t{16} << 20, "read at most so many bytes of --data");
ABSL_FLAG(int64_t, batch, 8, "sequences per rank and micro-step");
ABSL_FLAG(int64_t, accumulate, 1, "micro-steps (backward passes) per step");
ABSL_FLAG(bool, no_sync, false,
          "add the gradients of micro-steps on each rank and reduce them once per step; default: "
          "reduce in each micro-step");
ABSL_FLAG(
    gpt::CommHookName, comm_hook, gpt::CommHookName::kNone,
    "what sends gradients: none (the engine), powersgd (as thin matrices), all_reduce, or noop "
    "(nothing: to measure); ddp and zero1");
ABSL_FLAG(int64_t, powersgd_rank, 16, "of the matrices that powersgd sends");
ABSL_FLAG(int64_t, powersgd_start, 10, "backwards before powersgd begins");
ABSL_FLAG(int64_t, steps, 600, "updates to make");
ABSL_FLAG(gpt::OptimizerFlag, optimizer, {}, gpt::optimizer_help());
ABSL_FLAG(absl::optional<double>, lr, {},
          absl::StrCat("highest learning rate; default: ",
                       gpt::defaults_help(&gpt::Optimizer::lr)));
ABSL_FLAG(absl::optional<double>, min_lr, {},
          absl::StrCat("learning rate at the end of the cosine; default: ",
                       gpt::defaults_help(&gpt::Optimizer::min_lr)));
ABSL_FLAG(int64_t, warmup, 30, "steps in which the learning rate rises from 0");
ABSL_FLAG(absl::optional<double>, weight_decay, {},
          absl::StrCat("of matrices; biases, norms and embeddings are trained without; default: ",
                       gpt::defaults_help(&gpt::Optimizer::weight_decay)));
ABSL_FLAG(double, clip, 1.0, absl::StrCat(tessera::option_doc("max_grad_norm"), "; 0: none"));
ABSL_FLAG(double, ema, 0.0,
          "decay of an exponential moving average of the weights, as 0.999, whose held-out loss is "
          "printed at the end; 0: none");
ABSL_FLAG(uint64_t, seed, 1, "of the model's initial values and of the sample");
ABSL_FLAG(int64_t, eval_every, 0, "steps between held-out losses; 0: at the end only");
ABSL_FLAG(int64_t, eval_batches, 64,
          "size of the held-out text to judge by, in batches of --batch, over all ranks; 0: all");
ABSL_FLAG(int64_t, log_every, 20,
          "steps between lines of progress where the output is no terminal, and on a GPU between "
          "looks at the loss, which wait for it");
ABSL_FLAG(bool, memory, false, "print the memory of every rank by class at the end");
ABSL_FLAG(std::string, report, "",
          "write what the engine of rank 0 says of itself (units, sampled times, memory) to this "
          "file, as JSON");
ABSL_FLAG(std::string, losses_out, "",
          "write step, loss and gradient norm of every step to this file, with all digits");
ABSL_FLAG(std::string, trace, "",
          "record what every rank does when into this file, for ui.perfetto.dev");
ABSL_FLAG(std::string, checkpoint, "",
          "directory to save the run in, and to go on from; SIGTERM saves and ends");
ABSL_FLAG(ResumeFlag, resume, {},
          "where to go on: auto (the newest step in --checkpoint that is whole, if there is one), "
          "never, or the number of a step");
ABSL_FLAG(int64_t, save_every, 100,
          "steps between saves, which run beside training; 0: at the end only");
ABSL_FLAG(int64_t, keep, 3, "how many of the newest saved steps stay; 0: all");
ABSL_FLAG(int64_t, sample_bytes, 400, "bytes of text to generate at the end");
ABSL_FLAG(double, temperature, 0.8, "of the sample; 0: always the likeliest byte");
ABSL_FLAG(std::string, prompt, "namespace ", "beginning of the sample");

namespace gpt {
namespace {

tessera::Options read_options() {
  tessera::Options options;
  options.strategy = absl::GetFlag(FLAGS_strategy);
  if (const auto degrees = absl::GetFlag(FLAGS_degrees)) options.degrees = *degrees;
  if (const int ranks = absl::GetFlag(FLAGS_reshard_after_forward); ranks != 0) {
    options.reshard_after_forward = ranks;
  }
  if (const double clip = absl::GetFlag(FLAGS_clip); clip != 0.0) options.max_grad_norm = clip;
  const c10::ScalarType dtype = absl::GetFlag(FLAGS_param_dtype).type;
  if (dtype != c10::ScalarType::Float) options.precision.parameters = dtype;
  if (absl::GetFlag(FLAGS_loss_scale)) options.loss_scale.emplace();
  if (const double decay = absl::GetFlag(FLAGS_ema); decay != 0.0) {
    options.average = tessera::WeightAverage{.decay = decay};
  }
  options.trace = !absl::GetFlag(FLAGS_trace).empty();
  apply(absl::GetFlag(FLAGS_options), options);  // the texts were checked when they were parsed
  // On GPUs steps are asynchronous by default. Set the default here, because train() reads it.
  const bool is_on_gpu = absl::GetFlag(FLAGS_device).device.is_cuda();
  if (is_on_gpu && !options.asynchronous_step.has_value()) {
    options.asynchronous_step =
        options.offload == tessera::Offload::kNone &&
        !tessera::keeps_partial_sums(options.degrees.value_or(tessera::Degrees()));
  }
  return options;
}

}  // namespace

program::About about() {
  return {.name = "gpt",
          .summary = "trains a byte-level GPT on text.",
          .examples = {
              "gpt --steps 100", "tessera-run --standalone --nproc-per-node 2 gpt --strategy zero3",
              "gpt --optimizer lion --steps 100", "gpt --device cuda --param_dtype bfloat16"}};
}

Flags read_flags() {
  Flags flags;
  flags.options = read_options();
  flags.device = absl::GetFlag(FLAGS_device).device;
  flags.backend = absl::GetFlag(FLAGS_backend);
  flags.timeout = absl::GetFlag(FLAGS_timeout).timeout;
  flags.model.layers = absl::GetFlag(FLAGS_layers);
  flags.model.heads = absl::GetFlag(FLAGS_heads);
  flags.model.width = absl::GetFlag(FLAGS_width);
  flags.model.context = absl::GetFlag(FLAGS_context);
  flags.data = absl::GetFlag(FLAGS_data);
  if (flags.data.empty()) flags.data = default_data();
  flags.data_bytes = absl::GetFlag(FLAGS_data_bytes);
  flags.batch = absl::GetFlag(FLAGS_batch);
  flags.accumulate = absl::GetFlag(FLAGS_accumulate);
  flags.no_sync = absl::GetFlag(FLAGS_no_sync);
  flags.comm_hook = absl::GetFlag(FLAGS_comm_hook);
  flags.powersgd_rank = absl::GetFlag(FLAGS_powersgd_rank);
  flags.powersgd_start = absl::GetFlag(FLAGS_powersgd_start);
  flags.optimizer = absl::GetFlag(FLAGS_optimizer).optimizer;
  flags.rate = {.peak = absl::GetFlag(FLAGS_lr).value_or(flags.optimizer->lr),
                .floor = absl::GetFlag(FLAGS_min_lr).value_or(flags.optimizer->min_lr),
                .warmup_steps = absl::GetFlag(FLAGS_warmup),
                .steps = absl::GetFlag(FLAGS_steps)};
  flags.weight_decay = absl::GetFlag(FLAGS_weight_decay).value_or(flags.optimizer->weight_decay);
  flags.seed = absl::GetFlag(FLAGS_seed);
  flags.eval_every = absl::GetFlag(FLAGS_eval_every);
  flags.eval_batches = absl::GetFlag(FLAGS_eval_batches);
  flags.log_every = absl::GetFlag(FLAGS_log_every);
  flags.memory = absl::GetFlag(FLAGS_memory);
  flags.report = absl::GetFlag(FLAGS_report);
  flags.losses_out = absl::GetFlag(FLAGS_losses_out);
  flags.trace = absl::GetFlag(FLAGS_trace);
  flags.checkpoint = absl::GetFlag(FLAGS_checkpoint);
  flags.resume = absl::GetFlag(FLAGS_resume).resume;
  flags.save_every = absl::GetFlag(FLAGS_save_every);
  flags.keep = absl::GetFlag(FLAGS_keep);
  flags.prompt = absl::GetFlag(FLAGS_prompt);
  flags.sampling = {.new_bytes = absl::GetFlag(FLAGS_sample_bytes),
                    .temperature = absl::GetFlag(FLAGS_temperature),
                    .seed = flags.seed};
  return flags;
}

absl::Status validate(const Flags& flags) {
  std::vector<std::string> problems;
  if (const absl::Status options = tessera::validate(flags.options); !options.ok()) {
    problems.emplace_back(options.message());
  }
  const auto at_least = [&](const char* name, double value, double least) {
    if (!(value >= least) || !std::isfinite(value)) {
      problems.push_back(
          absl::StrCat("[gpt] --", name, ": got ", value, ", expected ", least, " or more"));
    }
  };
  const auto count = [&](const char* name, int64_t value, int64_t least,
                         int64_t most = std::numeric_limits<int64_t>::max() / 2) {
    if (value >= least && value <= most) return;
    problems.push_back(
        absl::StrCat("[gpt] --", name, ": got ", value, ", expected ", least, " to ", most));
  };
  // No machine holds a model of these sizes, and products of them do not overflow.
  constexpr int64_t kMaxLayers = 10000;
  constexpr int64_t kMax = int64_t{1} << 20;
  count("layers", flags.model.layers, 1, kMaxLayers);
  count("heads", flags.model.heads, 1, kMax);
  count("width", flags.model.width, 1, kMax);
  count("context", flags.model.context, 1, kMax);
  if (flags.model.heads >= 1 && flags.model.width % flags.model.heads != 0) {
    problems.push_back(absl::StrCat("[gpt] --width: got ", flags.model.width,
                                    ", expected a multiple of --heads ", flags.model.heads));
  }
  count("data_bytes", flags.data_bytes, 1);
  count("batch", flags.batch, 1, kMax);
  count("accumulate", flags.accumulate, 1, kMax);
  count("powersgd_rank", flags.powersgd_rank, 1);
  count("powersgd_start", flags.powersgd_start, 0);
  count("steps", flags.rate.steps, 1);
  at_least("lr", flags.rate.peak, 0.0);
  at_least("min_lr", flags.rate.floor, 0.0);
  count("warmup", flags.rate.warmup_steps, 0);
  at_least("weight_decay", flags.weight_decay, 0.0);
  count("eval_every", flags.eval_every, 0);
  count("eval_batches", flags.eval_batches, 0, kMax);
  count("log_every", flags.log_every, 1);
  count("save_every", flags.save_every, 0);
  count("keep", flags.keep, 0);
  if (flags.checkpoint.empty() && flags.resume.from == Resume::From::kStep) {
    problems.push_back("[gpt] --resume: got a step, expected --checkpoint with its directory");
  }
  count("sample_bytes", flags.sampling.new_bytes, 0);
  at_least("temperature", flags.sampling.temperature, 0.0);
  if (flags.no_sync && flags.accumulate == 1) {
    problems.push_back(
        "[gpt] --no_sync: got --accumulate 1, expected 2 or more; there is nothing to add up");
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace gpt
