#include "tessera/core/comm/shm/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/refusal.h"
#include "tessera/core/error_text.h"

namespace tessera::shm {
namespace {

/// The kernel's word about each page of this process.
class PageMap {
 public:
  PageMap() : fd_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  ~PageMap() {
    if (fd_ >= 0) ::close(fd_);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  /// The first page from number `page` on, of `pages` pages at `memory`, that a private mapping of
  /// a file has copied; `pages` if there is none, or if the kernel does not tell.
  int64_t next_copied(const char* memory, int64_t page, int64_t pages) const {
    const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory)) / page_bytes();
    std::array<uint64_t, 4096> words;
    while (page < pages) {
      const int64_t wanted = std::min<int64_t>(pages - page, words.size());
      const ssize_t got = ::pread(fd_, words.data(), wanted * sizeof(uint64_t),
                                  (first + page) * static_cast<int64_t>(sizeof(uint64_t)));
      const int64_t count = got < 0 ? 0 : got / static_cast<int64_t>(sizeof(uint64_t));
      if (count == 0) return pages;
      const auto* end = words.cbegin() + count;
      const auto* found = std::find_if(words.cbegin(), end, is_copied);
      if (found != end) return page + (found - words.cbegin());
      page += count;
    }
    return pages;
  }

  static int64_t page_bytes() {
    static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
    return bytes;
  }

 private:
  // Bit 63: present, 62: swapped out, 61: belongs to a file or to shared memory.
  // Source: Documentation/admin-guide/mm/pagemap.rst.
  static bool is_copied(uint64_t word) {
    constexpr uint64_t kThere = uint64_t{3} << 62;
    constexpr uint64_t kOfFile = uint64_t{1} << 61;
    return (word & kThere) != 0 && (word & kOfFile) == 0;
  }

  const int fd_;
};

at::Tensor tensor_in(char* memory, int64_t size_bytes, int64_t offset_bytes, int64_t numel,
                     at::ScalarType dtype, std::shared_ptr<void> keeper) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(offset_bytes >= 0 && offset_bytes % item == 0 && numel >= 0 &&
                  offset_bytes + numel * item <= size_bytes,
              "[comm] shared buffer: got ", numel, " elements of ", c10::toString(dtype),
              " from byte ", offset_bytes, ", expected a part of its ", size_bytes,
              " bytes that begins on an element");
  return at::from_blob(
      memory + offset_bytes, {numel}, [keeper = std::move(keeper)](void*) {},
      at::TensorOptions().dtype(dtype));
}

}  // namespace

class SharedBuffer::View {
 public:
  explicit View(const SharedRange& range)
      : bytes(static_cast<int64_t>(range.segment_bytes)), data(Segment::map_privately(range)) {}
  ~View() { ::munmap(data, bytes); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const int64_t bytes;
  char* const data;
};

std::unique_ptr<SharedBuffer> SharedBuffer::make(ProcessGroup& group, int64_t bytes,
                                                 std::string_view name) {
  // Everything that can fail is tried before the ranks go on together.
  std::string problem;
  std::shared_ptr<Segment> segment;
  SharedRange range;
  if (group.rank() == 0) {
    try {
      segment = Segment::create(bytes);
      range = segment->range(0);
    } catch (const c10::Error& error) {
      problem = error_text(error);
    }
  }
  const std::string what = absl::StrCat("shared buffer '", std::string(name), "'");
  refuse_together(group, problem, what);
  const at::Tensor words = at::empty({static_cast<int64_t>(sizeof(range))}, at::kByte);
  std::memcpy(words.mutable_data_ptr(), &range, sizeof(range));
  group.broadcast(words, /*root=*/0, name)->wait();
  std::memcpy(&range, words.const_data_ptr(), sizeof(range));

  std::shared_ptr<View> view;
  try {
    if (group.rank() != 0) segment = Segment::open(range);
    view = std::make_shared<View>(range);
  } catch (const c10::Error& error) {
    problem = error_text(error);
  }
  refuse_together(group, problem, what);
  if (bytes > 0) {
    // A rank that can see nothing speaks for all.
    if (group.rank() == 0) segment->data()[0] = 1;
    group.barrier(name);
    const at::Tensor sees = at::empty({1}, at::kInt).fill_(static_cast<int>(view->data[0]));
    group.all_reduce(sees, ReduceOp::kMin, name)->wait();
    if (group.rank() == 0) segment->data()[0] = 0;
    group.barrier(name);
    if (sees.item<int>() != 1) return nullptr;
  }
  return std::unique_ptr<SharedBuffer>(new SharedBuffer(std::move(segment), std::move(view)));
}

SharedBuffer::SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<View> view)
    : segment_(std::move(segment)), view_(std::move(view)) {}

at::Tensor SharedBuffer::common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) {
  return tensor_in(segment_->data(), segment_->size_bytes(), offset_bytes, numel, dtype, segment_);
}

at::Tensor SharedBuffer::view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) {
  return tensor_in(view_->data, view_->bytes, offset_bytes, numel, dtype, view_);
}

std::optional<int64_t> SharedBuffer::find_own_write() {
  static const PageMap page_map;
  const int64_t page_bytes = PageMap::page_bytes();
  const int64_t pages = view_->bytes / page_bytes;
  for (int64_t page = 0; (page = page_map.next_copied(view_->data, page, pages)) < pages; ++page) {
    const int64_t begin = page * page_bytes;
    const char* const mine = view_->data + begin;
    const char* const end = mine + page_bytes;
    const char* const differs = std::mismatch(mine, end, segment_->data() + begin).first;
    if (differs != end) return begin + (differs - mine);
    ::madvise(view_->data + begin, page_bytes, MADV_DONTNEED);
  }
  return std::nullopt;
}

void SharedBuffer::drop_own_writes() {
  ::madvise(view_->data, view_->bytes, MADV_DONTNEED);
  // At once: otherwise the next forward meets the pages one by one.
  ::madvise(view_->data, view_->bytes, MADV_POPULATE_READ);
}

}  // namespace tessera::shm
