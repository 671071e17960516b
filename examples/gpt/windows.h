#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace gpt {

/// A model's input and its target, both int64 [batch, context]; the target is the text one byte
/// later.
struct Batch {
  at::Tensor text;
  at::Tensor target;
};

/// A text cut into windows of context + 1 bytes, each beginning with the last byte of the previous
/// one. A view, no copy.
class Windows {
 public:
  /// `bytes` is uint8 [n] on the CPU, n > context. Batches are made on `device`.
  Windows(const at::Tensor& bytes, int64_t context, at::Device device = at::kCPU);

  int64_t size() const { return windows_.size(0); }

  /// Returns the windows with these numbers, in this order. On a GPU the copy is queued on the
  /// current stream, and the call does not wait for it.
  Batch batch(const std::vector<size_t>& numbers) const;

 private:
  at::Tensor windows_;  // uint8 [size, context + 1]
  at::Device device_;
};

}  // namespace gpt
