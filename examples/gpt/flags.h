#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <c10/core/Device.h>

#include "tessera/examples/gpt/comm_hook.h"
#include "tessera/examples/gpt/generate.h"
#include "tessera/examples/gpt/model.h"
#include "tessera/examples/gpt/optimizer.h"
#include "tessera/examples/gpt/rate_curve.h"
#include "tessera/examples/program/command_line.h"
#include "tessera/options.h"

namespace gpt {

/// Which saved step a run with --checkpoint goes on from.
struct Resume {
  enum class From : uint8_t { kNewest, kNothing, kStep };
  From from = From::kNewest;
  int64_t step = 0;  ///< under kStep
};

/// The command line's values. The table of names, defaults and help texts is in flags.cc.
struct Flags {
  /// Strategy, degrees, reshard_after_forward, precision, loss scale, clipping, average, trace,
  /// asynchronous steps on GPUs, and the fields given by --options.
  tessera::Options options;
  at::Device device = at::kCPU;  ///< where to train, as in ProcessGroupOptions
  std::string backend = "auto";
  std::chrono::milliseconds timeout{};
  ModelSizes model;

  std::string data;
  int64_t data_bytes = 0;
  int64_t batch = 0;       ///< sequences per rank and micro-step
  int64_t accumulate = 0;  ///< micro-steps per step
  bool no_sync = false;    ///< add gradients of micro-steps locally, reduce them once per step
  CommHookName comm_hook = CommHookName::kNone;
  int64_t powersgd_rank = 0;
  int64_t powersgd_start = 0;  ///< backward passes before PowerSGD starts
  const Optimizer* optimizer = nullptr;
  RateCurve rate;
  double weight_decay = 0.0;
  uint64_t seed = 0;

  int64_t eval_every = 0;    ///< steps between evaluations; 0: only at the end
  int64_t eval_batches = 0;  ///< batches over all ranks; 0: all held-out text
  int64_t log_every = 0;
  bool memory = false;
  std::string report;  ///< file for Engine::report(); empty: none
  std::string losses_out;
  std::string trace;  ///< file for the trace; empty: none

  std::string checkpoint;  ///< directory of the run; empty: nothing is saved
  Resume resume;
  int64_t save_every = 0;  ///< steps between saves; 0: only at the end
  int64_t keep = 0;        ///< how many of the newest saved steps are kept; 0: all

  std::string prompt;
  Sampling sampling;
};

/// For --help.
program::About about();

/// Returns what program::read_command_line() has set.
Flags read_flags();

/// Returns OK, or an error that lists every value out of range.
absl::Status validate(const Flags& flags);

}  // namespace gpt
