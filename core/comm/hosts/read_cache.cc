#include "tessera/core/comm/hosts/read_cache.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal::hosts {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAlignment = 64;
constexpr int kEntries = 1024;
// How often try_lock() tries to get the lock, which its holder keeps for microseconds.
constexpr int kTries = 100000;
constexpr int kYields = 100;
constexpr auto kSleep = std::chrono::microseconds(50);
constexpr auto kBetweenChecks = std::chrono::milliseconds(20);
// How long a rank waits for a part that another rank fetches, if that other rank waits for the
// part, too.
constexpr auto kPatience = std::chrono::seconds(30);
// How long a rank waits for a part if the rank that fetches the part does not wait for it: that
// rank may be waiting for this one instead. See Note [One copy for a host].
constexpr auto kPatienceUnawaited = std::chrono::milliseconds(500);

int64_t rounded(int64_t bytes) { return round_up(bytes, kAlignment); }

enum State : uint32_t {
  kFetching = 1,
  kReady,
  kFailed,  // the fetch failed, and may still write to the entry's memory
};

/// One part. While it is pinned it stays where it is.
struct Entry {
  ReadKey key;
  int64_t offset = 0;
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> pins;
  std::atomic<uint32_t> is_awaited;  // 1 once the rank that fetches the part waits for it

  bool is_over() const {
    return state.load(std::memory_order_acquire) == kReady &&
           pins.load(std::memory_order_acquire) == 0;
  }
  void unpin() { pins.fetch_sub(1, std::memory_order_release); }
};

/// The beginning of the shared segment, which is zero at first; the bytes of the parts follow it.
/// Entries [first, end) are the parts in the ring, oldest first; entry(n) is the one with number n.
/// Only the holder of the lock may use them, except that a rank may use the entries that it has
/// pinned.
struct Ring {
  std::atomic<uint32_t> lock;
  std::atomic<int64_t> capacity;
  int64_t first = 0;
  int64_t end = 0;
  Entry entries[kEntries];

  static Ring& in(const shm::Segment& segment) { return *reinterpret_cast<Ring*>(segment.data()); }
  Entry& entry(int64_t number) { return entries[number % kEntries]; }

  /// Returns false if the lock is never released, because its holder has died.
  bool try_lock() {
    for (int i = 0; i < kTries; ++i) {
      uint32_t expected = 0;
      if (lock.compare_exchange_weak(expected, 1, std::memory_order_acquire)) return true;
      ::sched_yield();
    }
    return false;
  }
  void unlock() { lock.store(0, std::memory_order_release); }

  Entry* find(const ReadKey& key);
  Entry* claim(const ReadKey& key);
  int64_t place_for(int64_t bytes);
};

constexpr int64_t kRingBytes = round_up(static_cast<int64_t>(sizeof(Ring)), shm::kPageBytes);

char* data_in(const shm::Segment& segment, const Entry& entry) {
  return segment.data() + kRingBytes + entry.offset;
}

Entry* Ring::find(const ReadKey& key) {
  for (int64_t number = end - 1; number >= first; --number) {
    Entry& one = entry(number);
    if (one.key == key && one.state.load(std::memory_order_acquire) != kFailed) return &one;
  }
  return nullptr;
}

/// Finds room for a new part of `bytes` bytes, and returns its offset. The room begins after the
/// newest part, or at 0 if too little room is left there; the parts that lie in it are dropped.
/// Returns -1 if the ring is too small, or if a part that must be dropped is pinned, is not fetched
/// yet, or could not be fetched.
int64_t Ring::place_for(int64_t bytes) {
  const int64_t room = capacity.load();
  if (bytes > room) return -1;
  int64_t begin = 0;
  if (first < end) {
    const Entry& newest = entry(end - 1);
    begin = newest.offset + rounded(newest.key.bytes);
    if (begin + bytes > room) begin = 0;
  }
  const auto is_in_the_way = [&](const Entry& one) {
    return one.offset < begin + bytes && begin < one.offset + rounded(one.key.bytes);
  };
  // Returns true if the oldest part must be dropped: if all entries are in use, or if any part lies
  // in the room. Parts are dropped oldest first, because the parts that follow the newest one in
  // the ring are the oldest.
  const auto blocks = [&] {
    if (end - first == kEntries) return true;
    for (int64_t number = first; number < end; ++number) {
      if (is_in_the_way(entry(number))) return true;
    }
    return false;
  };
  while (blocks()) {
    if (!entry(first).is_over()) return -1;
    ++first;
  }
  return begin;
}

/// Adds an entry for `key`, whose part the caller fetches. Returns null if there is no room.
Entry* Ring::claim(const ReadKey& key) {
  const int64_t offset = place_for(rounded(key.bytes));
  if (offset < 0) return nullptr;
  Entry& one = entry(end++);
  one.key = key;
  one.offset = offset;
  one.pins.store(1, std::memory_order_relaxed);
  one.is_awaited.store(0, std::memory_order_relaxed);
  one.state.store(kFetching, std::memory_order_release);
  return &one;
}

/// A part that this rank fetches, for itself and the others.
class Fetching final : public Work {
 public:
  /// Starts the fetch. If it fails, here or in wait(), the other ranks read the part themselves.
  Fetching(std::shared_ptr<shm::Segment> segment, Entry& entry, at::Tensor to,
           const ReadCache::Fetch& fetch)
      : segment_(std::move(segment)), entry_(entry), to_(std::move(to)) {
    try {
      inner_ = fetch(at::from_blob(
          data_in(*segment_, entry_), {to_.numel()}, [segment = segment_](void*) {},
          at::TensorOptions().dtype(to_.scalar_type())));
    } catch (...) {
      end(kFailed);
      throw;
    }
  }
  ~Fetching() override {
    try {
      wait();
    } catch (...) {  // nobody waits for it any more
    }
  }

  bool is_completed() override {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    // If another thread holds the lock, that thread is still waiting for the part in wait().
    return lock.owns_lock() && (is_over_ || inner_->is_completed());
  }

  /// Tells other ranks that this rank waits for the part; they then wait up to kPatience for it.
  bool wait_for(std::chrono::milliseconds longest) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!is_over_) entry_.is_awaited.store(1, std::memory_order_relaxed);
    }
    return inner_->wait_for(longest);
  }

  void wait() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return inner_->wait();
    is_over_ = true;
    entry_.is_awaited.store(1, std::memory_order_relaxed);
    try {
      inner_->wait();
    } catch (...) {
      end(kFailed);
      throw;
    }
    // Marks the part as ready before this rank copies it, so that other ranks can copy it
    // meanwhile.
    entry_.state.store(kReady, std::memory_order_release);
    copy_bytes(data_of(to_), data_in(*segment_, entry_), entry_.key.bytes);
    end(kReady);
  }

 private:
  void end(State state) {
    entry_.state.store(state, std::memory_order_release);
    entry_.unpin();
  }

  const std::shared_ptr<shm::Segment> segment_;
  Entry& entry_;
  const at::Tensor to_;
  std::shared_ptr<Work> inner_;
  std::mutex mutex_;
  bool is_over_ = false;
};

/// A part that another rank fetches.
class Waiting final : public Work {
 public:
  Waiting(std::shared_ptr<shm::Segment> segment, Entry& entry, at::Tensor to,
          ReadCache::Fetch fetch, ReadCache::Check check)
      : segment_(std::move(segment)),
        entry_(entry),
        to_(std::move(to)),
        fetch_(std::move(fetch)),
        check_(std::move(check)) {}
  ~Waiting() override { unpin(); }

  bool is_completed() override {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // a thread is in wait()
    if (is_unpinned_ && !is_over_) return own_fetch_ == nullptr || own_fetch_->is_completed();
    return is_over_ || entry_.state.load(std::memory_order_acquire) != kFetching;
  }

  void wait() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    // If an earlier wait() threw, the entry is no longer pinned and may hold another part.
    if (!is_unpinned_ && is_ready()) {
      copy_bytes(data_of(to_), data_in(*segment_, entry_), entry_.key.bytes);
      unpin();
    } else {
      unpin();
      if (own_fetch_ == nullptr) own_fetch_ = fetch_(to_);
      own_fetch_->wait();
    }
    is_over_ = true;
  }

 private:
  /// Waits for the part. Returns false if the fetch has failed or takes too long.
  bool is_ready() const {
    const auto begin = Clock::now();
    auto next_check = begin + kBetweenChecks;
    for (int i = 0;; ++i) {
      const uint32_t state = entry_.state.load(std::memory_order_acquire);
      if (state != kFetching) return state == kReady;
      if (i < kYields) {
        ::sched_yield();
        continue;
      }
      std::this_thread::sleep_for(kSleep);
      const auto now = Clock::now();
      if (now < next_check) continue;
      next_check = now + kBetweenChecks;
      check_();
      const bool is_awaited = entry_.is_awaited.load(std::memory_order_relaxed) != 0;
      if (now - begin > (is_awaited ? kPatience : kPatienceUnawaited)) return false;
    }
  }

  void unpin() {
    if (!std::exchange(is_unpinned_, true)) entry_.unpin();
  }

  const std::shared_ptr<shm::Segment> segment_;
  Entry& entry_;
  const at::Tensor to_;
  const ReadCache::Fetch fetch_;
  const ReadCache::Check check_;
  std::shared_ptr<Work> own_fetch_;  // null while this rank waits for the other's
  std::mutex mutex_;
  bool is_over_ = false;
  bool is_unpinned_ = false;
};

}  // namespace

std::shared_ptr<ReadCache> ReadCache::make(ProcessGroup& inside) {
  std::shared_ptr<shm::Segment> segment;
  const at::Tensor word = inside.allocate(sizeof(shm::SharedRange), at::kByte);
  auto& range = *reinterpret_cast<shm::SharedRange*>(data_of(word));
  const bool is_first = inside.rank() == 0;
  if (is_first) {
    segment = shm::Segment::create(kRingBytes, kRingBytes + kMostBytes);
    range = segment->range(0);
  }
  inside.broadcast(word, 0, "read cache")->wait();
  if (!is_first) segment = shm::Segment::open(range);
  // Until all ranks have opened the segment, the first rank must not release it.
  inside.barrier("read cache");
  return std::shared_ptr<ReadCache>(new ReadCache(std::move(segment), is_first));
}

void ReadCache::reserve(int64_t bytes) {
  if (!is_first_) return;
  const std::lock_guard<std::mutex> lock(growing_);
  std::atomic<int64_t>& capacity = Ring::in(*segment_).capacity;
  const int64_t most = std::min(kMostBytes, segment_->room_bytes() - kRingBytes);
  const int64_t more = round_up(std::min(bytes, most), shm::kPageBytes) - capacity.load();
  if (more <= 0) return;
  try {
    segment_->grow(more);
  } catch (const c10::Error&) {  // the cache keeps its size
    return;
  }
  capacity.fetch_add(more);
}

std::shared_ptr<Work> ReadCache::start_read(const ReadKey& key, const at::Tensor& to, Fetch fetch,
                                            Check check) {
  Ring& ring = Ring::in(*segment_);
  Entry* entry = nullptr;
  bool is_own = false;
  {
    const std::unique_lock<Ring> lock(ring, std::try_to_lock);
    if (!lock.owns_lock()) return fetch(to);
    entry = ring.find(key);
    is_own = entry == nullptr;
    if (is_own) entry = ring.claim(key);
    if (entry == nullptr) return fetch(to);
    if (!is_own) entry->pins.fetch_add(1, std::memory_order_acquire);
  }
  if (is_own) return std::make_shared<Fetching>(segment_, *entry, to, fetch);
  auto waiting =
      std::make_shared<Waiting>(segment_, *entry, to, std::move(fetch), std::move(check));
  // The other rank's fetch is over: copies the part now, or reads it if that fetch has failed.
  if (waiting->is_completed()) waiting->wait();
  return waiting;
}

}  // namespace tessera::internal::hosts
