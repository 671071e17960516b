#include "tessera/core/comm/hosts/read_cache.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal::hosts {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAlignment = 64;
constexpr int kEntries = 1024;
constexpr int kTries = 100000;  // to get the lock, which is held for microseconds
constexpr int kYields = 100;
constexpr auto kSleep = std::chrono::microseconds(50);
constexpr auto kBetweenChecks = std::chrono::milliseconds(20);
constexpr auto kPatience = std::chrono::seconds(30);
// With a rank that does not wait for what it fetches, and may wait for this one instead.
constexpr auto kPatienceUnawaited = std::chrono::milliseconds(500);

int64_t rounded(int64_t bytes) { return round_up(bytes, kAlignment); }

enum State : uint32_t {
  kFetching = 1,
  kReady,
  kFailed,  // something may still write to its memory
};

}  // namespace

/// One part. What is pinned stays where it is.
struct ReadCache::Entry {
  ReadKey key;
  int64_t offset = 0;
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> pins;
  std::atomic<uint32_t> is_awaited;  // 1 once the rank that fetches it waits for it

  bool is_over() const {
    return state.load(std::memory_order_acquire) == kReady &&
           pins.load(std::memory_order_acquire) == 0;
  }
};

/// The beginning of the segment; the data follows. Entries [first, end) are a queue in a ring.
struct ReadCache::Header {
  std::atomic<uint32_t> lock;
  std::atomic<int64_t> capacity;
  int64_t first = 0;
  int64_t end = 0;
  Entry entries[kEntries];

  Entry& entry(int64_t number) { return entries[number % kEntries]; }
};

const int64_t ReadCache::kHeaderBytes =
    round_up(static_cast<int64_t>(sizeof(Header)), shm::kPageBytes);

/// Held while alive, unless its holder has died.
class ReadCache::Lock {
 public:
  explicit Lock(std::atomic<uint32_t>& word) : word_(word) {
    for (int i = 0; i < kTries && !is_held_; ++i) {
      uint32_t expected = 0;
      is_held_ = word_.compare_exchange_weak(expected, 1, std::memory_order_acquire);
      if (!is_held_) ::sched_yield();
    }
  }
  ~Lock() {
    if (is_held_) word_.store(0, std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  bool is_held() const { return is_held_; }

 private:
  std::atomic<uint32_t>& word_;
  bool is_held_ = false;
};

/// A part that this rank fetches, for itself and the others.
class ReadCache::Fetching final : public Work {
 public:
  Fetching(std::shared_ptr<ReadCache> cache, Entry& entry, at::Tensor to)
      : cache_(std::move(cache)), entry_(entry), to_(std::move(to)) {}
  ~Fetching() override {
    try {
      if (inner_ != nullptr) wait();
    } catch (...) {  // nobody asks any more
    }
  }

  /// What goes wrong here, or later, lets the others read for themselves.
  void begin(const Fetch& fetch) {
    try {
      const at::Tensor memory = at::from_blob(
          cache_->data_of_entry(entry_), {to_.numel()}, [cache = cache_](void*) {},
          at::TensorOptions().dtype(to_.scalar_type()));
      inner_ = fetch(memory);
    } catch (...) {
      end(kFailed);
      throw;
    }
  }

  bool is_completed() override {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && (is_over_ || inner_->is_completed());  // else a thread waits for it
  }

  /// From then on those of the others that wait for this rank do so with patience.
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
    entry_.state.store(kReady, std::memory_order_release);  // before this rank copies it
    copy_bytes(data_of(to_), cache_->data_of_entry(entry_), entry_.key.bytes);
    end(kReady);
  }

 private:
  void end(State state) {
    entry_.state.store(state, std::memory_order_release);
    entry_.pins.fetch_sub(1, std::memory_order_release);
  }

  const std::shared_ptr<ReadCache> cache_;
  Entry& entry_;
  const at::Tensor to_;
  std::shared_ptr<Work> inner_;
  std::mutex mutex_;
  bool is_over_ = false;
};

/// A part that another rank fetches.
class ReadCache::Waiting final : public Work {
 public:
  Waiting(std::shared_ptr<ReadCache> cache, Entry& entry, at::Tensor to, Fetch fetch, Check check)
      : cache_(std::move(cache)),
        entry_(entry),
        to_(std::move(to)),
        fetch_(std::move(fetch)),
        check_(std::move(check)) {}
  ~Waiting() override { unpin(); }

  bool is_completed() override {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // a thread waits for it
    return is_over_ || entry_.state.load(std::memory_order_acquire) != kFetching;
  }

  void wait() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    if (is_ready()) {
      copy_bytes(data_of(to_), cache_->data_of_entry(entry_), entry_.key.bytes);
      unpin();
    } else {
      unpin();
      fetch_(to_)->wait();
    }
    is_over_ = true;
  }

 private:
  /// Waits for that, as long as there is hope.
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
    if (!std::exchange(is_unpinned_, true)) entry_.pins.fetch_sub(1, std::memory_order_release);
  }

  const std::shared_ptr<ReadCache> cache_;
  Entry& entry_;
  const at::Tensor to_;
  const Fetch fetch_;
  const Check check_;
  std::mutex mutex_;
  bool is_over_ = false;
  bool is_unpinned_ = false;
};

std::shared_ptr<ReadCache> ReadCache::make(ProcessGroup& inside) {
  std::shared_ptr<shm::Segment> segment;
  const at::Tensor word = inside.allocate(sizeof(shm::SharedRange), at::kByte);
  auto& range = *reinterpret_cast<shm::SharedRange*>(data_of(word));
  const bool is_first = inside.rank() == 0;
  if (is_first) {
    segment = shm::Segment::create(kHeaderBytes, kHeaderBytes + kMostBytes);
    range = segment->range(0);
  }
  inside.broadcast(word, 0, "read cache")->wait();
  if (!is_first) segment = shm::Segment::open(range);
  inside.barrier("read cache");  // the first has it until all do
  return std::shared_ptr<ReadCache>(new ReadCache(std::move(segment), is_first));
}

/// The segment begins as zeros, which is how an empty one looks.
ReadCache::Header& ReadCache::header() const {
  return *reinterpret_cast<Header*>(segment_->data());
}

char* ReadCache::data_of_entry(const Entry& entry) const {
  return segment_->data() + kHeaderBytes + entry.offset;
}

void ReadCache::reserve(int64_t bytes) {
  if (!is_first_) return;
  std::atomic<int64_t>& capacity = header().capacity;
  const int64_t most = std::min(kMostBytes, segment_->room_bytes() - kHeaderBytes);
  const int64_t more = round_up(std::min(bytes, most), shm::kPageBytes) - capacity.load();
  if (more <= 0) return;
  try {
    segment_->grow(more);
  } catch (const c10::Error&) {  // what there is serves
    return;
  }
  capacity.fetch_add(more);
}

/// The lock is held.
ReadCache::Entry* ReadCache::find(const ReadKey& key) {
  Header& all = header();
  for (int64_t number = all.end - 1; number >= all.first; --number) {
    Entry& entry = all.entry(number);
    if (entry.key == key && entry.state.load(std::memory_order_acquire) != kFailed) return &entry;
  }
  return nullptr;
}

/// Where the next part of this size begins, behind the newest, once older ones have gone that lie
/// there; negative if they cannot. The lock is held.
int64_t ReadCache::place_for(int64_t bytes) {
  Header& all = header();
  const int64_t capacity = all.capacity.load();
  if (bytes > capacity) return -1;
  int64_t begin = 0;
  if (all.first < all.end) {
    const Entry& newest = all.entry(all.end - 1);
    begin = newest.offset + rounded(newest.key.bytes);
    if (begin + bytes > capacity) begin = 0;
  }
  const auto is_in_the_way = [&](const Entry& entry) {
    return entry.offset < begin + bytes && begin < entry.offset + rounded(entry.key.bytes);
  };
  // The oldest go first. Those that end behind the newest are the oldest, too.
  const auto blocks = [&] {
    if (all.end - all.first == kEntries) return true;
    for (int64_t number = all.first; number < all.end; ++number) {
      if (is_in_the_way(all.entry(number))) return true;
    }
    return false;
  };
  while (blocks()) {
    if (!all.entry(all.first).is_over()) return -1;
    ++all.first;
  }
  return begin;
}

/// The lock is held. Null if there is no room.
ReadCache::Entry* ReadCache::claim(const ReadKey& key) {
  const int64_t offset = place_for(rounded(key.bytes));
  if (offset < 0) return nullptr;
  Header& all = header();
  Entry& entry = all.entry(all.end++);
  entry.key = key;
  entry.offset = offset;
  entry.pins.store(1, std::memory_order_relaxed);
  entry.is_awaited.store(0, std::memory_order_relaxed);
  entry.state.store(kFetching, std::memory_order_release);
  return &entry;
}

std::shared_ptr<Work> ReadCache::start_read(const std::shared_ptr<ReadCache>& cache,
                                            const ReadKey& key, const at::Tensor& to, Fetch fetch,
                                            Check check) {
  Entry* entry = nullptr;
  bool is_own = false;
  {
    const Lock lock(cache->header().lock);
    if (!lock.is_held()) return fetch(to);
    entry = cache->find(key);
    is_own = entry == nullptr;
    if (is_own) entry = cache->claim(key);
    if (entry == nullptr) return fetch(to);
    if (!is_own) entry->pins.fetch_add(1, std::memory_order_acquire);
  }
  if (is_own) {
    auto fetching = std::make_shared<Fetching>(cache, *entry, to);
    fetching->begin(fetch);
    return fetching;
  }
  auto waiting = std::make_shared<Waiting>(cache, *entry, to, std::move(fetch), std::move(check));
  if (waiting->is_completed()) waiting->wait();  // a copy, now that it is there
  return waiting;
}

}  // namespace tessera::internal::hosts
