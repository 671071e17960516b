#include "tessera/examples/gpt/batches.h"

#include <optional>
#include <utility>
#include <vector>

namespace gpt {

Batches::Batches(Windows windows, int64_t sequences, int rank, int ranks)
    : windows_(std::move(windows)),
      sequences_(static_cast<size_t>(sequences)),
      sampler_(windows_.size(), ranks, rank, {.remainder = tessera::data::Remainder::kDrop}) {
  TORCH_CHECK(sequences >= 1 && sequences <= windows_.size() / ranks, "[gpt] sequences: got ",
              sequences, " per batch and rank, expected 1 to ", windows_.size() / ranks,
              "; give more text or a smaller batch");
}

Batch Batches::next() {
  std::optional<std::vector<size_t>> numbers = sampler_.next(sequences_);
  if (!numbers || numbers->size() < sequences_) {
    sampler_.set_epoch(sampler_.epoch() + 1);
    numbers = sampler_.next(sequences_);
  }
  sampler_.advance();
  return windows_.batch(*numbers);
}

}  // namespace gpt
