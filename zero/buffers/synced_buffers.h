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
  /// Returns null where there is nothing to do: under BufferSync::kOnce, if there are no buffers,
  /// and in a world of one. Names, dtypes, sizes and values of `buffers` are equal on all ranks;
  /// `group` must outlive the result. Collective and blocking if the result is not null.
  static std::unique_ptr<SyncedBuffers> make(ProcessGroup& group,
                                             const std::vector<NamedTensor>& buffers,
                                             BufferSync sync);

  /// Returns a message that names the first buffer whose dtype, sizes or device are not those at
  /// parallelize, or whose values changed although some rank may not write them; "" if there is
  /// none. Local. Allocates nothing if there is no problem and the buffers that may not be written
  /// are contiguous.
  std::string problem() const;

  /// The ranks whose buffers are used: the buffers of all ranks get the values of one of these
  /// ranks, or the mean over them. In a loop over Engine::join() they are the ranks that have
  /// batches left, elsewhere all ranks. All ranks pass the same `first` and `count`.
  struct Ranks {
    int first;      ///< the lowest of these ranks; it broadcasts the buffers that are not averaged
    int count;      ///< the number of these ranks
    bool has_mine;  ///< true if this rank is one of them
  };

  /// Starts to send the buffers' values. For a buffer that has a problem(), sends the values of its
  /// last copy. Collective.
  void start(const Ranks& counted);
  /// Blocks until the other ranks' values have arrived and writes them into the buffers. Graphs
  /// that saved the buffers stay valid.
  void finish();

  /// Returns how many bytes the copies take.
  int64_t bytes() const;

 private:
  /// A buffer and its copy. In a Batch the copy is a part of Batch::flat.
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
  int divisor_ = 0;  ///< by which finish() divides the sums under way; 0 if they are means already
};

}  // namespace tessera::internal
