#include "tessera/core/comm/shm/shared_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/agreement/text_exchange.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal::shm {
namespace {

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

  int64_t pages() const { return bytes / PageMap::page_bytes(); }

  /// What this rank has written to `count` pages from `page` on gives way to the common memory.
  void drop(int64_t page, int64_t count) const {
    char* const memory = data + page * PageMap::page_bytes();
    const int64_t length = count * PageMap::page_bytes();
    if (::madvise(memory, length, MADV_DONTNEED) == 0) return;
    // Pages that are locked (mlockall) are not dropped. The common mapping stays locked.
    ::munlock(memory, length);
    TORCH_CHECK(::madvise(memory, length, MADV_DONTNEED) == 0,
                "[comm] shared buffer: got pages that cannot be dropped, expected this rank's "
                "writes to be; madvise said: ",
                std::strerror(errno),
                ". Do not lock or seal the memory of parameters, or set Options::share_parameters"
                " = false");
  }

  const int64_t bytes;
  char* const data;
};

std::unique_ptr<SharedBuffer> SharedBuffer::make(ProcessGroup& group, int64_t bytes,
                                                 std::string_view name,
                                                 const OpenPageMap& open_page_map) {
  // Everything that can fail is tried before the ranks go on together.
  std::string problem;
  if (bytes < 0) problem = absl::StrCat("got ", bytes, " bytes, expected at least 0");
  std::shared_ptr<Segment> segment;
  struct Offer {
    SharedRange range;
    int64_t bytes;
  } offer{{}, bytes};
  if (group.rank() == 0 && problem.empty()) {
    try {
      segment = Segment::create(bytes);
      offer.range = segment->range(0);
    } catch (const c10::Error& error) {
      problem = error_text(error);
    }
  }
  const std::string what = absl::StrCat("shared buffer '", std::string(name), "'");
  refuse_on_all_ranks(group, problem, what);
  const at::Tensor words = at::empty({static_cast<int64_t>(sizeof(offer))}, at::kByte);
  std::memcpy(words.mutable_data_ptr(), &offer, sizeof(offer));
  group.broadcast(words, /*root=*/0, name)->wait();
  std::memcpy(&offer, words.const_data_ptr(), sizeof(offer));

  try {
    TORCH_CHECK(offer.bytes == bytes, "got ", bytes, " bytes where rank 0 asked for ", offer.bytes,
                ", expected equal sizes on all ranks");
    if (group.rank() != 0) segment = Segment::open(offer.range);
  } catch (const c10::Error& error) {
    problem = error_text(error);
  }
  refuse_on_all_ranks(group, problem, what);

  // From here on a problem is one of sharing: ranks can keep copies.
  std::unique_ptr<SharedBuffer> buffer;
  try {
    buffer.reset(new SharedBuffer(segment, std::make_shared<View>(offer.range), group.rank()));
  } catch (const c10::Error& error) {
    problem = error_text(error);
  }
  // See Note [Proof of sharing].
  if (group.rank() == 0) segment->data()[0] = 1;
  group.barrier(name);
  if (buffer != nullptr && buffer->view_->data[0] != 1) {
    problem = "its private mapping does not show common writes";
  }
  group.barrier(name);
  if (group.rank() == 0) segment->data()[0] = 0;
  group.barrier(name);
  if (problem.empty()) {
    try {
      buffer->page_map_ = open_page_map();
      problem = buffer->try_own_write();
    } catch (const c10::Error& error) {
      problem = error_text(error);
    }
  }
  const std::vector<std::string> problems = exchange_texts(group, problem, name);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    // All ranks know it, and a later buffer would be told the same.
    if (group.rank() == 0) {
      TORCH_WARN_ONCE("[comm] ", what, ": every rank keeps a copy of its own, for rank ", rank,
                      " cannot share: ", problems[rank]);
    }
    return nullptr;
  }
  return buffer;
}

SharedBuffer::SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<View> view, int rank)
    : rank_(rank), segment_(std::move(segment)), view_(std::move(view)) {}

std::string SharedBuffer::try_own_write() {
  const int64_t pages = view_->pages();
  const int64_t last = pages - 1;
  const auto copied_from = [&](int64_t page) {
    return page_map_->next_copied(view_->data, page, pages);
  };
  if (copied_from(0) != pages) return "pages show as copied that nobody has written";
  char* const page = view_->data + last * PageMap::page_bytes();
  const char* const common = segment_->data() + last * PageMap::page_bytes();
  *static_cast<volatile char*>(page) = 1;
  if (*static_cast<const volatile char*>(common) != 0) return "its private writes are common";
  if (copied_from(0) != last) return "a page that it wrote does not show as copied";
  view_->drop(last, 1);
  if (copied_from(0) != pages || *static_cast<volatile char*>(page) != 0) {
    return "a page that it wrote cannot be dropped";
  }
  return "";
}

void SharedBuffer::require_own_process() const {
  TORCH_CHECK(origin_.is_here(),
              "[comm] shared buffer: ", origin_.fork_error(absl::StrCat("rank ", rank_)));
}

at::Tensor SharedBuffer::common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) {
  require_own_process();
  return tensor_in(segment_->data(), segment_->room_bytes(), offset_bytes, numel, dtype, segment_);
}

at::Tensor SharedBuffer::view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) {
  require_own_process();
  return tensor_in(view_->data, view_->bytes, offset_bytes, numel, dtype, view_);
}

std::optional<int64_t> SharedBuffer::find_own_write() {
  require_own_process();
  const int64_t page_bytes = PageMap::page_bytes();
  const int64_t pages = view_->pages();
  for (int64_t page = 0; (page = page_map_->next_copied(view_->data, page, pages)) < pages;
       ++page) {
    const int64_t begin = page * page_bytes;
    const char* const mine = view_->data + begin;
    const char* const end = mine + page_bytes;
    const char* const differs = std::mismatch(mine, end, segment_->data() + begin).first;
    if (differs != end) return begin + (differs - mine);
    view_->drop(page, 1);
  }
  return std::nullopt;
}

void SharedBuffer::drop_own_writes() {
  require_own_process();
  view_->drop(0, view_->pages());
  // At once: otherwise the next forward meets the pages one by one.
  ::madvise(view_->data, view_->bytes, MADV_POPULATE_READ);
}

}  // namespace tessera::internal::shm
