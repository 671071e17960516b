#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "tessera/wrap_policy.h"

namespace bench {

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// The task of all entries: a model from seed 1, trained on the same batches. The Python peers in
/// bench/peers have the same weights and the same batches, bit for bit.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  tessera::WrapPolicy wrap;  ///< units if parameters are split; the same as the peers'
  /// This rank's batch of step `step`, counted from 0. Created before the clock starts.
  std::function<Batch(int64_t step)> batch;
  std::function<at::Tensor(const Batch& batch)> loss;
};

/// `name`: A, B, C, S (GPTs with 6.5, 25.5 and 91 million parameters; S is A with 64 tokens per
/// step), MLP, or for GPUs gpt2-1k and gpt2-16k (124 million parameters, 1024 and 16384 tokens per
/// step) or deep-<n> (n layers with 50 million parameters each). The task is created on the CPU.
/// `text`: the file that the GPTs learn from. A batch joins the batches of the `ranks` ranks from
/// `rank` on. Throws c10::Error for another name, or if the file cannot be read or is too short.
Task make_task(const std::string& name, const std::string& text, int rank, int world,
               int ranks = 1);

}  // namespace bench
