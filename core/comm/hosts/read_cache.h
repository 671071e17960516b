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

/// The bytes that a read returns. Equal keys mean equal bytes.
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
/// The first rank that needs a part fetches it into the ring. Ranks that need it meanwhile wait for
/// that; later ones copy it. The oldest parts make room for new ones, even if some ranks have not
/// had them yet: ranks that wait for the network stay close to each other, because those that fell
/// back are served from memory. A rank reads for itself if there is no room, as all of it is being
/// read or written; if the rank that fetches fails, or takes longer than kPatience; or if a process
/// that has ended holds the lock.
///
/// Two ranks never wait for each other's parts: a rank waits for a batch of reads in the order in
/// which it started them, so each of the two would have found the other's part before it was
/// claimed. But a rank that fetches ahead may be in a collective, which waits for a rank that needs
/// the part now. That rank waits only kPatienceUnawaited until the other waits for its part, too.
class ReadCache {
 public:
  /// The most memory of a host that the cache takes.
  static constexpr int64_t kMostBytes = int64_t{256} << 20;

  /// Collective over `inside`. Throws c10::Error where there is no memory for it.
  static std::shared_ptr<ReadCache> make(ProcessGroup& inside);

  /// Local, with equal arguments on all ranks. Lets the cache grow to `bytes`, at most kMostBytes,
  /// if the host has the memory. Any thread.
  void reserve(int64_t bytes);

  /// Starts a read into `to`.
  using Fetch = std::function<std::shared_ptr<Work>(const at::Tensor& to)>;
  /// Throws CommError if the group has failed.
  using Check = std::function<void()>;

  /// Local. Reads the part `key` into `to`: from the cache if a rank of the host has read it, else
  /// by `fetch`. Work::wait() throws the errors of `fetch`.
  std::shared_ptr<Work> start_read(const ReadKey& key, const at::Tensor& to, Fetch fetch,
                                   Check check);

 private:
  ReadCache(std::shared_ptr<shm::Segment> segment, bool is_first)
      : segment_(std::move(segment)), is_first_(is_first) {}

  const std::shared_ptr<shm::Segment> segment_;
  const bool is_first_;  // this rank is the first of its host and has made the segment
  std::mutex growing_;   // held while the segment grows: each group has a thread
};

}  // namespace tessera::internal::hosts
