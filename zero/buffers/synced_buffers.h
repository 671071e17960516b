#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/buffer_sync.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Makes the model's buffers equal on all ranks once per step (Options::buffers). Copies them into
/// contiguous memory, so that one collective serves all buffers that are treated alike.
class SyncedBuffers {
 public:
  /// Returns null where there is nothing to do: under BufferSync::kOnce, without buffers, in a
  /// world of one. Names, dtypes, sizes and values of `buffers` are equal on all ranks; `group`
  /// outlives it. Collective and blocking if the result is not null.
  static std::unique_ptr<SyncedBuffers> make(ProcessGroup& group,
                                             const std::vector<NamedTensor>& buffers,
                                             BufferSync sync);

  /// Names the first buffer whose dtype, sizes or device are not those at parallelize, or whose
  /// values changed although a rank may not write them; "" if none. Local. Finding none allocates
  /// nothing if the buffers that may not be written are contiguous.
  std::string problem() const;

  /// The ranks whose buffers count; equal on all ranks except `has_mine`. In a loop over
  /// Engine::join() these are the ranks that have batches left.
  struct Ranks {
    int first;      ///< the lowest of them; its values are broadcast where there is no mean
    int count;      ///< how many there are
    bool has_mine;  ///< this rank is one of them
  };

  /// Sends what the buffers hold; a buffer with a problem() sends its last copy. Collective.
  void start(const Ranks& counted);
  /// Blocks until the ranks' values are there and writes them into the buffers, without counting as
  /// a change for graphs that saved them.
  void finish();

  /// Bytes of the copies.
  int64_t bytes() const;

 private:
  /// A buffer and its part of a copy.
  struct Place {
    NamedTensor buffer;
    at::Tensor copy;
    bool is_as_planned() const;
    std::string problem_of_form() const;
  };
  /// Buffers that one collective makes equal.
  struct Batch {
    at::Tensor flat;
    bool is_mean = false;
    std::vector<Place> places = {};
    std::shared_ptr<Work> work = nullptr;
  };

  explicit SyncedBuffers(ProcessGroup& group) : group_(group) {}
  void add_batch(const std::vector<NamedTensor>& buffers, at::ScalarType dtype, bool is_mean);

  ProcessGroup& group_;
  std::vector<Batch> batches_;
  /// Buffers in memory that some rank may only read. No collective can make them equal, so they
  /// must keep the values in these copies.
  std::vector<Place> constants_;
  int divisor_ = 0;  ///< of the sums under way; 0: they are means
};

}  // namespace tessera::internal
