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

/// What all entries train: a model from seed 1 on the same batches. The Python peers have the
/// same in bench/peers, weight for weight and byte for byte.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  tessera::WrapPolicy wrap;  ///< units where parameters are split; the peers' are the same
  /// This rank's batch of step `step`, counted from 0. Made before the clock starts.
  std::function<Batch(int64_t step)> batch;
  std::function<at::Tensor(const Batch& batch)> loss;
};

/// `name`: A, B, C, S (GPTs of 6.5, 25.5 and 91 million parameters; S is A with 64 tokens a step),
/// MLP, or for GPUs gpt2-1k and gpt2-16k (124 million, 1024 and 16384 tokens a step) or deep-<n>
/// (n layers of 50 million). On the CPU. `text`: the file that the GPTs learn from. `ranks`: the
/// batches are those of so many ranks from `rank` on, one after the other. Throws c10::Error for
/// another name or a file that cannot be read or is too short.
Task make_task(const std::string& name, const std::string& text, int rank, int world,
               int ranks = 1);

}  // namespace bench
