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
#include "tessera/core/process/error_text.h"
#include "tessera/process_group.h"

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

/// What `body` throws; "" if nothing.
template <typename Body>
std::string problem_of(const Body& body) {
  try {
    body();
    return "";
  } catch (const c10::Error& error) {
    return error_text(error);
  }
}

}  // namespace

std::unique_ptr<SharedBuffer> SharedBuffer::make(ProcessGroup& group, int64_t bytes,
                                                 std::string_view name) {
  const std::string what = absl::StrCat("shared buffer '", std::string(name), "'");
  std::shared_ptr<Segment> segment;
  struct Offer {
    SharedRange range;
    int64_t bytes;
  } offer{{}, bytes};
  // Everything that can fail is tried before the ranks go on together.
  const std::string no_offer = problem_of([&] {
    TORCH_CHECK(bytes >= 0, "got ", bytes, " bytes, expected at least 0");
    if (group.rank() != 0) return;
    segment = Segment::create(bytes);
    offer.range = segment->range(0);
  });
  refuse_on_all_ranks(group, no_offer, what);
  const at::Tensor words = at::empty({static_cast<int64_t>(sizeof(offer))}, at::kByte);
  std::memcpy(words.mutable_data_ptr(), &offer, sizeof(offer));
  group.broadcast(words, /*root=*/0, name)->wait();
  std::memcpy(&offer, words.const_data_ptr(), sizeof(offer));

  const std::string no_segment = problem_of([&] {
    TORCH_CHECK(offer.bytes == bytes, "got ", bytes, " bytes where rank 0 asked for ", offer.bytes,
                ", expected equal sizes on all ranks");
    if (group.rank() != 0) segment = Segment::open(offer.range);
  });
  refuse_on_all_ranks(group, no_segment, what);

  // From here on a problem is one of sharing: ranks can keep copies.
  std::unique_ptr<SharedBuffer> buffer;
  const std::string unshared = problem_of([&] {
    buffer.reset(new SharedBuffer(segment, Segment::map_privately(offer.range), group.rank()));
    buffer->try_own_write();
  });
  const std::vector<std::string> problems = group.all_gather_bytes(unshared, name);
  const auto first = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& problem) { return !problem.empty(); });
  if (first == problems.end()) return buffer;
  // All ranks know it, and a later buffer would be told the same.
  if (group.rank() == 0) {
    TORCH_WARN_ONCE("[comm] ", what, ": every rank keeps a copy of its own, for rank ",
                    first - problems.begin(), " cannot share: ", *first);
  }
  return nullptr;
}

SharedBuffer::SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<char> view, int rank)
    : rank_(rank), segment_(std::move(segment)), view_(std::move(view)) {}

int64_t SharedBuffer::next_copied(int64_t page) const {
  return page_map_.next_copied(view_.get(), page, pages());
}

/// What this rank has written to `count` pages from `page` on gives way to the common memory.
void SharedBuffer::drop(int64_t page, int64_t count) const {
  const int64_t page_bytes = PageMap::page_bytes();
  TORCH_CHECK(::madvise(view_.get() + page * page_bytes, count * page_bytes, MADV_DONTNEED) == 0,
              "[comm] shared buffer: got pages that cannot be dropped, expected this rank's writes "
              "to be; madvise said: ",
              std::strerror(errno),
              ". Do not lock or seal the memory of parameters, or set Options::share_parameters"
              " = false");
}

void SharedBuffer::try_own_write() {
  const int64_t last = pages() - 1;
  TORCH_CHECK(next_copied(0) == pages(), "pages show as copied that nobody has written");
  char* const page = view_.get() + last * PageMap::page_bytes();
  const char* const common = segment_->data() + last * PageMap::page_bytes();
  *static_cast<volatile char*>(page) = 1;
  TORCH_CHECK(*static_cast<const volatile char*>(common) == 0, "its private writes are common");
  TORCH_CHECK(next_copied(0) == last, "a page that it wrote does not show as copied");
  drop(last, 1);
  TORCH_CHECK(next_copied(0) == pages() && *static_cast<volatile char*>(page) == 0,
              "a page that it wrote cannot be dropped");
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
  return tensor_in(view_.get(), segment_->room_bytes(), offset_bytes, numel, dtype, view_);
}

std::optional<int64_t> SharedBuffer::find_own_write() {
  require_own_process();
  const int64_t page_bytes = PageMap::page_bytes();
  for (int64_t page = 0; (page = next_copied(page)) < pages(); ++page) {
    const int64_t begin = page * page_bytes;
    const char* const mine = view_.get() + begin;
    const char* const end = mine + page_bytes;
    const char* const differs = std::mismatch(mine, end, segment_->data() + begin).first;
    if (differs != end) return begin + (differs - mine);
    drop(page, 1);
  }
  return std::nullopt;
}

void SharedBuffer::drop_own_writes() {
  require_own_process();
  drop(0, pages());
  // At once: otherwise the next forward meets the pages one by one.
  ::madvise(view_.get(), segment_->room_bytes(), MADV_POPULATE_READ);
}

}  // namespace tessera::internal::shm
