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

/// The model's buffers, made equal on all ranks once per step (Options::buffers), through copies
/// that lie one behind the other: one collective for all of them that are treated alike.
class SyncedBuffers {
 public:
  /// Null where there is nothing to do: under BufferSync::kOnce, without buffers, in a world of
  /// one. Names, dtypes, sizes and values of `buffers` are equal on all ranks; `group` outlives it.
  /// Collective, blocking, where it is not null.
  static std::unique_ptr<SyncedBuffers> make(ProcessGroup& group,
                                             const std::vector<NamedTensor>& buffers,
                                             BufferSync sync);

  /// Names the first buffer that has not the dtype, sizes or device it had at parallelize, or not
  /// the values, where a rank may not write them; "" if none. Local; allocates nothing then, if
  /// such values are contiguous.
  std::string problem() const;

  /// Whose buffers count, equal on all ranks but for `has_mine`: in a loop over Engine::join()
  /// those of ranks that have batches left.
  struct Ranks {
    int first;      ///< the lowest of them, whose values are sent where they are not averaged
    int count;      ///< how many they are
    bool has_mine;  ///< this rank is one of them
  };

  /// Collective. Sends what the buffers hold; those with a problem() send what they last did.
  void start(const Ranks& counted);
  /// Blocks until the ranks' values are there and writes them into the buffers, without counting as
  /// a change for graphs that saved them.
  void finish();

  /// Of the copies.
  int64_t bytes() const;

 private:
  /// A buffer, and its part of a copy.
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
  /// What lies in memory that a rank may only read: no collective makes it equal, so it must stay
  /// what it was. The copies are what it was.
  std::vector<Place> constants_;
  int divisor_ = 0;  ///< of the sums under way; 0: they are means
};

}  // namespace tessera::internal
