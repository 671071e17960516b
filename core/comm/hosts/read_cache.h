#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/shm/segment.h"
#include "tessera/process_group.h"
#include "tessera/work.h"

namespace tessera::internal::hosts {

/// What a read brings: equal keys are equal bytes.
struct ReadKey {
  int64_t window = 0;
  int64_t rank = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t version = 0;

  friend bool operator==(const ReadKey&, const ReadKey&) = default;
};

/// What one rank of a host has read from another host, for the other ranks of its host: a ring of
/// bounded size in memory that they share. Thread-safe.
///
/// Note [One copy for a host]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// The first rank that needs a part fetches it into the ring; who needs it meanwhile waits for
/// that, and who comes later copies it. The oldest parts make room for new ones, whoever has not
/// had them yet: ranks that wait for the network follow each other closely, because those behind
/// are served from memory. Where there is no room, as all of it is being read or written, a rank
/// reads for itself. So it does if the rank that fetches fails, or has not ended within kPatience,
/// and if the lock is held by a process that has ended. Nobody waits for a rank that waits for
/// another part: a batch of reads is waited for in the order in which it was started, so of two
/// ranks that would wait for each other each would have found the other's part before it was
/// claimed. But a rank that has begun to fetch ahead may be in a collective, which waits for one
/// that needs the part now: that one waits only shortly until the other waits for its part, too.
class ReadCache {
 public:
  /// Most of the memory of a host that it takes.
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

  /// Collective over `inside`. Throws c10::Error where there is no memory for it.
  static std::shared_ptr<ReadCache> make(ProcessGroup& inside);

  /// Local, for all ranks alike: lets it grow to `bytes`, or kMostBytes if that is less, where the
  /// host has the memory. Any thread.
  void reserve(int64_t bytes);

  /// Begins a read into the memory that it is given.
  using Fetch = std::function<std::shared_ptr<Work>(const at::Tensor& to)>;
  /// Throws CommError if the group has failed.
  using Check = std::function<void()>;

  /// Local. Brings what `key` says into `to`, by `fetch` if no rank of the host has it. Results and
  /// errors are those of `fetch`, after Work::wait().
  std::shared_ptr<Work> start_read(const ReadKey& key, const at::Tensor& to, Fetch fetch,
                                   Check check);

 private:
  ReadCache(std::shared_ptr<shm::Segment> segment, bool is_first)
      : segment_(std::move(segment)), is_first_(is_first) {}

  const std::shared_ptr<shm::Segment> segment_;
  const bool is_first_;  // of the host's ranks, who has made the segment
  std::mutex growing_;   // of the segment: each group has a thread
};

}  // namespace tessera::internal::hosts
