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

/// Identifies the bytes that a read returns. Equal keys mean equal bytes.
struct ReadKey {
  int64_t window = 0;
  int64_t rank = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t version = 0;

  friend bool operator==(const ReadKey&, const ReadKey&) = default;
};

/// Parts that one rank of a host has read from another host, kept for the other ranks of its host:
/// a ring of bounded size in shared memory. Thread-safe.
///
/// Note [One copy for a host]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// The first rank that needs a part fetches it into the ring. Ranks that need the part meanwhile
/// wait for the fetch; later ranks copy the part from the ring. The oldest parts make room for new
/// ones, even if some ranks have not read them yet. Ranks stay close to each other all the same,
/// because a rank that has fallen back reads from memory while the others wait for the network. A
/// rank bypasses the ring and reads from the other host if the ring has no room (for instance
/// because the oldest part is still being read or written), if the rank that fetches fails or takes
/// longer than kPatience, or if a process that has ended holds the lock.
///
/// Two ranks never wait for each other's parts. A rank waits for a batch of reads in the order in
/// which it started them. So if rank A waits for a part that B fetches before A completes a part of
/// its own, then B claimed its part before A did. The reverse cannot be true as well. But a rank
/// may fetch a part ahead and then wait in a collective for a rank that needs this part now. So a
/// rank waits only kPatienceUnawaited for a part that the fetching rank does not itself wait for.
class ReadCache {
 public:
  /// The most memory that the cache of a host takes.
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

  /// Collective over `inside`. Throws c10::Error on a rank that gets no memory for the cache.
  static std::shared_ptr<ReadCache> make(ProcessGroup& inside);

  /// Local, with equal arguments on all ranks. Lets the cache grow to `bytes`, at most kMostBytes,
  /// if the host has the memory. Any thread.
  void reserve(int64_t bytes);

  /// A function that starts a read of the part into `to`, and returns its Work.
  using Fetch = std::function<std::shared_ptr<Work>(const at::Tensor& to)>;
  /// A function that throws CommError if the group has failed.
  using Check = std::function<void()>;

  /// Local. Starts to read the part `key` into `to`: from the cache if a rank of this host has read
  /// or is reading it, else by `fetch`. `check` is called now and then while this rank waits for
  /// the other one. Work::wait() also throws the errors of `fetch`.
  std::shared_ptr<Work> start_read(const ReadKey& key, const at::Tensor& to, Fetch fetch,
                                   Check check);

 private:
  ReadCache(std::shared_ptr<shm::Segment> segment, bool is_first)
      : segment_(std::move(segment)), is_first_(is_first) {}

  const std::shared_ptr<shm::Segment> segment_;
  const bool is_first_;  // this rank is the first of its host and has made the segment
  // Held while the segment grows, because the groups that share the cache have a thread each.
  std::mutex growing_;
};

}  // namespace tessera::internal::hosts
