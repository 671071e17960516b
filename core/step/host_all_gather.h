#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal {

/// An all-gather of fixed-size reports of 64-bit integers on the host. Afterwards every rank has
/// the same words, so all ranks can reach the same decision. Allocates only in the constructor.
class HostAllGather {
 public:
  /// `group` must outlive the object. words >= 1, equal on all ranks.
  HostAllGather(ProcessGroup& group, int64_t words);

  /// Returns this rank's words, to be filled in before exchange().
  std::span<int64_t> mine() { return {mine_, static_cast<size_t>(words_)}; }

  /// Exchanges the words. Collective, blocking. Traffic: (N - 1) * words * 8 bytes received per
  /// rank.
  void exchange(std::string_view tag);

  /// The two halves of exchange(). start() submits this rank's words, which may be changed
  /// afterwards; finish() waits for the other ranks' words.
  void start(std::string_view tag);
  void finish();
  /// Replaces finish(), on all ranks, if the reports are not needed. Never blocks.
  void drop() { under_way_ = nullptr; }

  /// Returns the words of `rank` as of the last exchange().
  std::span<const int64_t> of(int rank) const {
    return {all_ + rank * words_, static_cast<size_t>(words_)};
  }

  int64_t bytes() const { return (size_ + 1) * words_ * static_cast<int64_t>(sizeof(int64_t)); }

 private:
  ProcessGroup& group_;
  int64_t size_;
  int64_t words_;
  at::Tensor input_;   // [words]
  at::Tensor output_;  // [size * words]
  int64_t* mine_;
  const int64_t* all_;
  std::shared_ptr<Work> under_way_;
};

}  // namespace tessera::internal
