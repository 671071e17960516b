#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace gpt {

/// What a model reads and what it should say, both int64 [batch, context]; target is the text one
/// byte later.
struct Batch {
  at::Tensor text;
  at::Tensor target;
};

/// A text cut into windows of context + 1 bytes, each beginning on the last byte of the one before.
/// A view, no copy.
class Windows {
 public:
  /// `bytes` is uint8 [n] on the CPU, n > context. Batches are made for a model at `device`.
  Windows(const at::Tensor& bytes, int64_t context, at::Device device = at::kCPU);

  int64_t size() const { return windows_.size(0); }

  /// The windows of these numbers, in this order. On a GPU their copy is queued on the current
  /// stream, and the call does not wait for it.
  Batch batch(const std::vector<size_t>& numbers) const;

 private:
  at::Tensor windows_;  // uint8 [size, context + 1]
  at::Device device_;
};

}  // namespace gpt
