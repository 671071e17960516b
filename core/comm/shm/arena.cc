#include "tessera/core/comm/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/round_up.h"

namespace tessera::shm {
namespace {

constexpr int64_t kPageBytes = 4096;
// Control blocks fit into the first segment; what comes later shares huge pages.
constexpr int64_t kFirstSegmentBytes = int64_t{1} << 20;
constexpr int64_t kSmallestSegmentBytes = 2 * kHugePageBytes;

std::string error_text() { return std::strerror(errno); }

/// Which segments this process has mapped already. Process-wide by nature: it is what makes rank
/// threads share one mapping.
struct Mapped {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<Segment>> segments;
};

Mapped& mapped() {
  static Mapped* const instance =
      new Mapped;  // never destroyed: segments may outlive static destruction
  return *instance;
}

/// Random in its upper half, so that ids of processes differ, and counted in its lower half.
uint64_t next_segment_id() {
  static const uint64_t base = uint64_t{std::random_device{}()} << 32;
  static std::atomic<uint32_t> count{0};
  return base + ++count;
}

/// Closes a descriptor unless it was released.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// The number after `label` in a file of the kernel, in units of `unit_bytes`; nothing if there is
/// none.
std::optional<int64_t> read_bytes(const char* path, const std::string& label, int64_t unit_bytes) {
  std::ifstream file(path);
  std::string word;
  while (!label.empty() && file >> word && word != label) {
  }
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value * unit_bytes;
}

/// How much memory this host, or the container that we run in, can still give.
int64_t available_bytes() {
  constexpr int64_t kKib = 1024;
  const auto free = read_bytes("/proc/meminfo", "MemAvailable:", kKib);
  const auto swap = read_bytes("/proc/meminfo", "SwapFree:", kKib);
  int64_t bytes = free ? *free + swap.value_or(0) : std::numeric_limits<int64_t>::max();
  const auto limit = read_bytes("/sys/fs/cgroup/memory.max", "", 1);
  const auto used = read_bytes("/sys/fs/cgroup/memory.current", "", 1);
  const auto cached = read_bytes("/sys/fs/cgroup/memory.stat", "inactive_file", 1);
  if (limit && used) bytes = std::min(bytes, *limit - *used + cached.value_or(0));
  return bytes;
}

/// The descriptor of a segment that another rank has made, or this one.
Descriptor descriptor_of(const SharedRange& range) {
  const std::string path = absl::StrCat("/proc/", range.pid, "/fd/", range.fd);
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  TORCH_CHECK(fd.get() >= 0, "[comm] shared memory: got no access to ", path, " of a peer (",
              error_text(), "), expected a process of the same user; start all ranks alike");
  TORCH_CHECK(::lseek(fd.get(), 0, SEEK_END) == static_cast<int64_t>(range.segment_bytes),
              "[comm] shared memory: got ", path, " of another size, expected ",
              range.segment_bytes, " bytes; the peer has closed it");
  return fd;
}

/// Maps a segment that was opened.
char* map(const SharedRange& range, const Descriptor& fd, Writes writes) {
  char* data = map_on_huge_page(static_cast<int64_t>(range.segment_bytes), fd.get(), writes);
  TORCH_CHECK(data != nullptr, "[comm] shared memory: got no mapping of ", range.segment_bytes,
              " bytes of a peer, expected one; mmap said: ", error_text());
  return data;
}

}  // namespace

Segment::Segment(uint64_t id, int fd, char* data, int64_t size_bytes)
    : id_(id), pid_(::getpid()), fd_(fd), data_(data), size_bytes_(size_bytes) {}

Segment::~Segment() {
  ::munmap(data_, size_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::shared_ptr<Segment> Segment::create(int64_t bytes) {
  const int64_t size_bytes = round_up(std::max<int64_t>(bytes, 1), kPageBytes);
  const std::string what = absl::StrCat("[comm] shared memory: got no space for ", size_bytes,
                                        " bytes, expected a new segment of that size; ");
  Descriptor fd(::memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  TORCH_CHECK(fd.get() >= 0, what, "memfd_create said: ", error_text());
  // Over the file size limit the kernel would send SIGXFSZ, which ends the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    TORCH_CHECK(static_cast<rlim_t>(size_bytes) <= limit.rlim_cur, what,
                "the limit of file sizes is ", limit.rlim_cur, " bytes; raise it (ulimit -f)");
  }
  // The kernel takes page after page for fallocate, and kills a process when there are none left.
  const int64_t available = available_bytes();
  TORCH_CHECK(size_bytes <= available, what, "this host has ", available,
              " bytes left; free memory or use less");
  // Memory is taken now: a sparse file would be an error at the first write instead, as SIGBUS.
  int result;
  do {
    result = ::fallocate(fd.get(), 0, 0, size_bytes);
  } while (result != 0 && errno == EINTR);
  TORCH_CHECK(result == 0, what, "fallocate said: ", error_text(), "; free memory or use less");
  TORCH_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, what,
              "sealing failed: ", error_text());
  char* data = map_on_huge_page(size_bytes, fd.get(), Writes::kShared);
  TORCH_CHECK(data != nullptr, what, "mmap said: ", error_text());
  // Before peers map it, so that they touch huge pages.
  move_into_huge_pages(data, size_bytes);
  const uint64_t id = next_segment_id();
  std::shared_ptr<Segment> segment(new Segment(id, fd.release(), data, size_bytes));
  Mapped& all = mapped();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.segments[id] = segment;
  return segment;
}

std::shared_ptr<Segment> Segment::open(const SharedRange& range) {
  Mapped& all = mapped();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::weak_ptr<Segment>& known = all.segments[range.segment_id];
  if (auto segment = known.lock()) return segment;
  const Descriptor fd = descriptor_of(range);
  char* data = map(range, fd, Writes::kShared);
  std::shared_ptr<Segment> segment(
      new Segment(range.segment_id, -1, data, static_cast<int64_t>(range.segment_bytes)));
  known = segment;
  return segment;
}

char* Segment::map_privately(const SharedRange& range) {
  return map(range, descriptor_of(range), Writes::kPrivate);
}

SharedRange Segment::range(int64_t offset_bytes) const {
  SharedRange range;
  range.segment_id = id_;
  range.offset_bytes = static_cast<uint64_t>(offset_bytes);
  range.segment_bytes = static_cast<uint64_t>(size_bytes_);
  range.pid = pid_;
  range.fd = fd_;
  return range;
}

std::shared_ptr<Arena> Arena::create() { return std::shared_ptr<Arena>(new Arena()); }

char* Arena::allocate(int64_t bytes) {
  const int64_t rounded = round_up(std::max<int64_t>(bytes, 1), kPageBytes);
  std::lock_guard<std::mutex> lock(mutex_);
  // The smallest hole that fits: large ones stay whole for large blocks, so a program that repeats
  // itself never grows.
  Region* best = nullptr;
  int64_t best_offset = 0;
  int64_t best_bytes = std::numeric_limits<int64_t>::max();
  for (auto& [address, region] : regions_) {
    for (const auto& [offset, block] : region->blocks) {
      if (block.used || block.size_bytes < rounded || block.size_bytes >= best_bytes) continue;
      best = region.get();
      best_offset = offset;
      best_bytes = block.size_bytes;
    }
  }
  if (best != nullptr) return take(*best, best_offset, rounded);
  auto region = std::make_unique<Region>();
  region->segment = Segment::create(
      std::max(rounded, regions_.empty() ? kFirstSegmentBytes : kSmallestSegmentBytes));
  const int64_t segment_bytes = region->segment->size_bytes();
  region->blocks[0] = {segment_bytes, false};
  reserved_bytes_ += segment_bytes;
  Region& added = *region;
  regions_[added.segment->data()] = std::move(region);
  return take(added, 0, rounded);
}

char* Arena::take(Region& region, int64_t offset, int64_t bytes) {
  Block& block = region.blocks.at(offset);
  if (block.size_bytes > bytes) {
    region.blocks[offset + bytes] = {block.size_bytes - bytes, false};
    block.size_bytes = bytes;
  }
  block.used = true;
  used_bytes_ += bytes;
  return region.segment->data() + offset;
}

void Arena::free(char* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  Region* region = region_of(data);
  if (region == nullptr) return;
  auto& blocks = region->blocks;
  auto block = blocks.find(data - region->segment->data());
  if (block == blocks.end()) return;
  block->second.used = false;
  used_bytes_ -= block->second.size_bytes;
  auto next = std::next(block);
  if (next != blocks.end() && !next->second.used) {
    block->second.size_bytes += next->second.size_bytes;
    blocks.erase(next);
  }
  if (block != blocks.begin()) {
    auto before = std::prev(block);
    if (!before->second.used) {
      before->second.size_bytes += block->second.size_bytes;
      blocks.erase(block);
    }
  }
}

at::Tensor Arena::allocate_tensor(int64_t numel, at::ScalarType dtype) {
  char* block = allocate(check_allocate(numel, dtype));
  auto give_back = [arena = shared_from_this()](void* data) {
    arena->free(static_cast<char*>(data));
  };
  return at::from_blob(block, {numel}, std::move(give_back), at::TensorOptions().dtype(dtype));
}

Arena::Region* Arena::region_of(const void* data) const {
  const auto* address = static_cast<const char*>(data);
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  Region* region = std::prev(after)->second.get();
  return address < region->segment->data() + region->segment->size_bytes() ? region : nullptr;
}

std::optional<SharedRange> Arena::find(const void* data, int64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Region* region = region_of(data);
  if (region == nullptr) return std::nullopt;
  const int64_t offset = static_cast<const char*>(data) - region->segment->data();
  if (offset + bytes > region->segment->size_bytes()) return std::nullopt;
  return region->segment->range(offset);
}

int64_t Arena::reserved_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_bytes_;
}

int64_t Arena::used_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

}  // namespace tessera::shm
