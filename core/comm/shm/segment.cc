#include "tessera/core/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/numbers/round_up.h"
#include "tessera/core/process/available_memory.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/process/process_status.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {
namespace {

/// Returns device, inode and size of a file. `fd` is open, so this cannot fail.
struct stat status_of(const FileDescriptor& fd) {
  struct stat file {};
  ::fstat(fd.get(), &file);
  return file;
}

std::string path_of(const SharedRange& range) {
  return absl::StrCat("/proc/", range.pid, "/fd/", range.fd);
}

/// Opens a segment through its creator's descriptor. If the creator has closed the descriptor, its
/// number may belong to another file now, so this checks the file.
FileDescriptor descriptor_of(const SharedRange& range) {
  const std::string path = path_of(range);
  FileDescriptor fd(above_standard_streams(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)));
  TORCH_CHECK(fd.is_open(), "[comm] shared memory: got no access to ", path, " of a peer (",
              errno == EMFILE ? system_refusal("open", errno) : std::strerror(errno),
              "), expected a file that it has open; ", access_problem(range.pid));
  const struct stat file = status_of(fd);
  const auto bytes = static_cast<uint64_t>(file.st_size);
  TORCH_CHECK(file.st_dev == range.segment.device && file.st_ino == range.segment.inode &&
                  S_ISREG(file.st_mode) && bytes > range.offset_bytes &&
                  bytes <= range.segment_bytes,
              "[comm] shared memory: got another file at ", path, " (inode ", file.st_ino, ", ",
              bytes, " bytes), expected the segment (inode ", range.segment.inode, ", at most ",
              range.segment_bytes, " bytes) that the peer made known; the peer has closed it");
  return fd;
}

/// Returns the beginning of an error text: "[comm] shared memory: got no space for 4096 bytes,
/// expected ...; "
std::string no_space_text(int64_t bytes) {
  return absl::StrCat("[comm] shared memory: got no space for ", bytes,
                      " bytes, expected a new segment of that size; ");
}

/// Adds `bytes` to file `fd`, which has `before` bytes. Takes the memory now, because with a sparse
/// file a lack of memory would be a SIGBUS at the first write.
void take_memory(int fd, int64_t before, int64_t bytes) {
  const std::string what = no_space_text(bytes);
  // Compare with the available memory first, because fallocate takes page after page, and when no
  // page is left, the kernel kills a process.
  const int64_t available = available_memory_bytes();
  TORCH_CHECK(bytes <= available, what, "this host or container has ", available,
              " bytes left; free memory or use less");
  int result;
  do {
    result = ::fallocate(fd, 0, before, bytes);
  } while (result != 0 && errno == EINTR);
  TORCH_CHECK(result == 0, what, system_refusal("fallocate", errno));
}

/// Maps the whole segment of `range`. `fd` is the segment's open file.
char* map(const SharedRange& range, const FileDescriptor& fd, Writes writes) {
  char* data = map_on_huge_page(static_cast<int64_t>(range.segment_bytes), fd.get(), writes);
  TORCH_CHECK(data != nullptr, "[comm] shared memory: got no mapping of ", range.segment_bytes,
              " bytes of a peer, expected one; ", system_refusal("mmap", errno));
  return data;
}

}  // namespace

std::string SharedRange::to_text() const {
  return absl::StrCat(segment.device, " ", segment.inode, " ", segment_bytes, " ", pid, " ", fd);
}

std::optional<SharedRange> SharedRange::from_text(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  SharedRange range;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &range.segment.device) ||
      !absl::SimpleAtoi(fields[1], &range.segment.inode) ||
      !absl::SimpleAtoi(fields[2], &range.segment_bytes) ||
      !absl::SimpleAtoi(fields[3], &range.pid) || !absl::SimpleAtoi(fields[4], &range.fd) ||
      range.pid < 1 || range.fd < 0) {
    return std::nullopt;
  }
  return range;
}

/// The segments that this process maps. Process-wide, so that rank threads share one mapping, and a
/// child of fork() can make all mappings private. If another thread is just making or destroying a
/// mapping, the list may lack it at the fork(). This does no harm, because that thread does not
/// exist in the child.
struct Segment::Mapped {
  static Mapped& get() {
    static Mapped* const mapped = [] {
      held = new Mapped;  // never destroyed: segments may outlive statics
      hold_across_fork(held->mutex, []() noexcept {
        for (Segment* const segment : held->segments) segment->make_private();
      });
      return held;
    }();
    return *mapped;
  }

  /// Requires the mutex. Returns the live mapping of a segment; null if there is none. A live
  /// mapping keeps its file alive, so no other file can have the same id. Ignores mappings that
  /// were inherited through fork().
  std::shared_ptr<Segment> find(const SegmentId& id) const {
    for (Segment* const segment : segments) {
      if (segment->id_ != id || segment->is_private_) continue;
      if (auto alive = segment->weak_from_this().lock()) return alive;
    }
    return nullptr;
  }

  static inline constinit Mapped* held = nullptr;

  std::mutex mutex;  // ~Segment() takes it, so no segment is destroyed while it is held
  std::vector<Segment*> segments;
};

Segment::Segment(SegmentId id, int fd, char* data, int64_t memory_bytes, int64_t room_bytes,
                 std::string path)
    : id_(id),
      pid_(::getpid()),
      fd_(fd),
      path_(std::move(path)),
      data_(data),
      memory_bytes_(memory_bytes),
      room_bytes_(room_bytes) {}

Segment::~Segment() {
  {
    const std::lock_guard lock(Mapped::get().mutex);
    std::erase(Mapped::get().segments, this);
  }
  ::munmap(data_, room_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

/// Called in a child before fork() returns there. The parent keeps writing to its mappings; the
/// child's writes must not reach them.
void Segment::make_private() noexcept {
  if (std::exchange(is_private_, true)) return;
  const auto remap = [this](int kind, int fd) {
    return ::mmap(data_, room_bytes_, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | kind, fd,
                  0) != MAP_FAILED;
  };
  const FileDescriptor peers(fd_ < 0 ? ::open(path_.c_str(), O_RDWR | O_CLOEXEC) : -1);
  const int fd = fd_ < 0 ? peers.get() : fd_;
  struct stat file {};
  const bool is_it = fd >= 0 && ::fstat(fd, &file) == 0 &&
                     SegmentId{.device = file.st_dev, .inode = file.st_ino} == id_;
  if (is_it && remap(0, fd)) return;
  if (remap(MAP_ANONYMOUS | MAP_NORESERVE, -1)) return;
  // Make every access a SIGSEGV, because that is better than a write to the parent's memory.
  ::mprotect(data_, room_bytes_, PROT_NONE);
}

std::shared_ptr<Segment> Segment::create(int64_t bytes, int64_t room_bytes) {
  const int64_t size_bytes = round_up(std::max<int64_t>(bytes, 1), kPageBytes);
  const std::string what = no_space_text(size_bytes);
  FileDescriptor fd(above_standard_streams(::memfd_create("tessera", MFD_CLOEXEC)));
  TORCH_CHECK(fd.is_open(), "[comm] shared memory: got no file for a segment of ", size_bytes,
              " bytes, expected one; ", system_refusal("memfd_create", errno));
  take_memory(fd.get(), 0, size_bytes);
  const struct stat file = status_of(fd);
  const int64_t mapped_bytes = std::max(size_bytes, room_bytes / kPageBytes * kPageBytes);
  char* const data = map_on_huge_page(mapped_bytes, fd.get(), Writes::kShared);
  TORCH_CHECK(data != nullptr, what, system_refusal("mmap", errno));
  // Done before peers map the segment, so that they touch huge pages.
  move_into_huge_pages(data, size_bytes);
  std::shared_ptr<Segment> segment(new Segment({.device = file.st_dev, .inode = file.st_ino},
                                               fd.release(), data, size_bytes, mapped_bytes));
  Mapped& mapped = Mapped::get();
  const std::lock_guard lock(mapped.mutex);
  mapped.segments.push_back(segment.get());
  return segment;
}

void Segment::grow(int64_t bytes) {
  TESSERA_DCHECK(bytes % kPageBytes == 0);
  TESSERA_DCHECK(bytes <= room_bytes_ - memory_bytes_);
  take_memory(fd_, memory_bytes_, bytes);
  // Start at the last huge page in which the old memory lies, because it may have filled only a
  // part of that page.
  char* const begin = data_ + memory_bytes_ / kHugePageBytes * kHugePageBytes;
  memory_bytes_ += bytes;
  move_into_huge_pages(begin, data_ + memory_bytes_ - begin);
}

std::shared_ptr<Segment> Segment::open(const SharedRange& range) {
  Mapped& mapped = Mapped::get();
  const std::lock_guard lock(mapped.mutex);
  std::shared_ptr<Segment> segment = mapped.find(range.segment);
  if (segment != nullptr) return segment;
  const FileDescriptor fd = descriptor_of(range);
  char* data = map(range, fd, Writes::kShared);
  segment.reset(new Segment(range.segment, -1, data, 0, static_cast<int64_t>(range.segment_bytes),
                            path_of(range)));
  mapped.segments.push_back(segment.get());
  return segment;
}

bool Segment::is_closed(const SharedRange& range) {
  struct stat link {};
  // lstat fails if the creator has closed the descriptor. It also fails, with EACCES, while the
  // creator ends, if the kernel shows an ending process's files to root only.
  return ::lstat(path_of(range).c_str(), &link) != 0 && access_problem(range.pid).empty();
}

std::shared_ptr<char> Segment::map_privately(const SharedRange& range) {
  char* const data = map(range, descriptor_of(range), Writes::kPrivate);
  return {data, [bytes = range.segment_bytes](char* begin) { ::munmap(begin, bytes); }};
}

SharedRange Segment::range(int64_t offset_bytes) const {
  return {.segment = id_,
          .offset_bytes = static_cast<uint64_t>(offset_bytes),
          .segment_bytes = static_cast<uint64_t>(room_bytes_),
          .pid = pid_,
          .fd = fd_};
}

}  // namespace tessera::internal::shm
