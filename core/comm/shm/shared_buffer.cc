#include "tessera/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/shm/link.h"
#include "tessera/core/numbers/round_up.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/process_group.h"

namespace tessera::internal::shm {
namespace {

constexpr const char* kPageMap = "/proc/self/pagemap";
constexpr int64_t kMostBytes = int64_t{1} << 62;

int64_t page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

/// Returns true if `word` of the page map shows a page that the kernel has copied because this
/// process, and not a child of it, wrote to the page. Bit 63: present, 62: swapped out, 61: belongs
/// to a file or to shared memory. Source: Documentation/admin-guide/mm/pagemap.rst.
bool is_copied(uint64_t word) {
  constexpr uint64_t kThere = uint64_t{3} << 62;
  constexpr uint64_t kOfFile = uint64_t{1} << 61;
  return (word & kThere) != 0 && (word & kOfFile) == 0;
}

/// A segment that rank 0 makes and every rank maps twice: shared, and private (copy on write).
///
/// Note [Proof of sharing]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// A mistaken write through the private mapping gives one rank its own copy of a page. Later
/// training steps notice this only if the kernel can show which pages the rank has written, and
/// repair it only if the kernel can drop them. Not every system can. So every rank tests this
/// first; if the test fails on any rank, no rank shares.
class SharedPages final : public SharedBuffer {
 public:
  /// Throws c10::Error if this rank cannot map a view, or cannot see or drop its own writes.
  SharedPages(std::shared_ptr<Segment> segment, const SharedRange& range, int64_t bytes, int rank)
      : rank_(rank),
        bytes_(bytes),
        segment_(std::move(segment)),
        view_(Segment::map_privately(range)),
        page_map_(above_standard_streams(::open(kPageMap, O_RDONLY | O_CLOEXEC))) {
    TORCH_CHECK(page_map_.is_open(), "[comm] page map: got no access to ", kPageMap, " (",
                std::strerror(errno),
                "), expected the kernel's list of pages; mount /proc, or allow more descriptors "
                "(ulimit -n)");
    try_own_write();
  }

  at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override {
    return tensor_in(segment_->data(), offset_bytes, numel, dtype, segment_);
  }
  at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override {
    return tensor_in(view_.get(), offset_bytes, numel, dtype, view_);
  }

  std::optional<int64_t> find_own_write() override {
    require_own_process();
    for (int64_t page = 0; (page = next_copied(page)) < pages(); ++page) {
      const int64_t begin = page * page_bytes();
      const char* const mine = view_.get() + begin;
      const char* const end = mine + page_bytes();
      const char* const differs = std::mismatch(mine, end, segment_->data() + begin).first;
      if (differs != end) return begin + (differs - mine);
      drop(page, 1);
    }
    return std::nullopt;
  }

  void drop_own_writes() override {
    require_own_process();
    drop(0, pages());
    // Fault the pages in at once; otherwise the next forward faults them in one by one.
    ::madvise(view_.get(), segment_->room_bytes(), MADV_POPULATE_READ);
  }

 private:
  /// Throws c10::Error unless the system does what Note [Proof of sharing] needs.
  void try_own_write() const {
    const int64_t last = pages() - 1;
    TORCH_CHECK(next_copied(0) == pages(), "pages show as copied that nobody has written");
    auto* const page = static_cast<volatile char*>(view_.get() + last * page_bytes());
    *page = 1;
    TORCH_CHECK(segment_->data()[last * page_bytes()] == 0, "its private writes are common");
    TORCH_CHECK(next_copied(0) == last, "a page that it wrote does not show as copied");
    drop(last, 1);
    TORCH_CHECK(next_copied(0) == pages() && *page == 0, "a page that it wrote cannot be dropped");
  }

  void require_own_process() const {
    TORCH_CHECK(origin_.is_here(),
                "[comm] shared buffer: ", origin_.fork_error(absl::StrCat("rank ", rank_)));
  }
  int64_t pages() const { return segment_->room_bytes() / page_bytes(); }

  at::Tensor tensor_in(char* memory, int64_t offset_bytes, int64_t numel, at::ScalarType dtype,
                       std::shared_ptr<void> keeper) const {
    require_own_process();
    const auto item = static_cast<int64_t>(c10::elementSize(dtype));
    TORCH_CHECK(offset_bytes >= 0 && offset_bytes <= bytes_ && offset_bytes % item == 0 &&
                    numel >= 0 && numel <= (bytes_ - offset_bytes) / item,
                "[comm] shared buffer: got ", numel, " elements of ", c10::toString(dtype),
                " from byte ", offset_bytes, ", expected a part of its ", bytes_,
                " bytes that begins on an element");
    return at::from_blob(
        memory + offset_bytes, {numel}, [keeper = std::move(keeper)](void*) {},
        at::TensorOptions().dtype(dtype));
  }

  /// Returns the first copied page of the view at or after `page`; pages() if there is none. Throws
  /// c10::Error if the page map cannot be read.
  int64_t next_copied(int64_t page) const {
    constexpr auto kWordBytes = static_cast<int64_t>(sizeof(uint64_t));
    const auto first =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(view_.get())) / page_bytes();
    std::array<uint64_t, 4096> words;
    while (page < pages()) {
      const int64_t wanted = std::min<int64_t>(pages() - page, words.size()) * kWordBytes;
      const ssize_t got =
          ::pread(page_map_.get(), words.data(), wanted, (first + page) * kWordBytes);
      TORCH_CHECK(got >= kWordBytes, "[comm] page map: got ", got, " bytes of ", kPageMap,
                  ", expected up to ", wanted,
                  "; without it a write to shared parameters goes unseen. Leave the descriptor "
                  "open, or set Options::share_parameters = false");
      const auto* const end = words.cbegin() + got / kWordBytes;
      const auto* const found = std::find_if(words.cbegin(), end, is_copied);
      page += found - words.cbegin();
      if (found != end) return page;
    }
    return pages();
  }

  /// Drops this rank's writes to `count` pages from `page` on, so that the view shows the common
  /// memory again.
  void drop(int64_t page, int64_t count) const {
    TORCH_CHECK(
        ::madvise(view_.get() + page * page_bytes(), count * page_bytes(), MADV_DONTNEED) == 0,
        "[comm] shared buffer: got pages that cannot be dropped, expected this rank's writes "
        "to be; madvise said: ",
        std::strerror(errno),
        ". Do not lock or seal the memory of parameters, or set Options::share_parameters = false");
  }

  const Origin origin_;
  const int rank_;
  const int64_t bytes_;
  const std::shared_ptr<Segment> segment_;  // whole pages
  const std::shared_ptr<char> view_;        // this rank's private mapping of the segment
  // The kernel's map of this process's pages. The constructor opens it, so that it can be read even
  // when descriptors have run out.
  const FileDescriptor page_map_;
};

}  // namespace

/// Makes a buffer of `bytes` zero bytes. If rank 0 has no space, or another rank cannot map the
/// buffer, all ranks throw c10::Error that names that rank. Returns null on all ranks if any rank
/// cannot map a private view, or cannot see or drop its own writes; rank 0 then warns with the
/// reason, once per process.
std::unique_ptr<SharedBuffer> Link::make_shared_buffer(ProcessGroup& group, int64_t bytes,
                                                       std::string_view name) {
  const std::string what = absl::StrCat("shared buffer '", std::string(name), "'");
  std::shared_ptr<Segment> segment;
  struct Offer {
    SharedRange range;
    int64_t bytes;
  } offer{{}, bytes};
  // Each rank first tries what can fail. Then refuse_on_all_ranks() makes all ranks throw if it has
  // failed on any rank.
  const std::string no_offer = thrown_by([&] {
    TORCH_CHECK(bytes >= 0 && bytes <= kMostBytes, "got ", bytes, " bytes, expected 0 to ",
                kMostBytes);
    if (rank_ != 0) return;
    segment = Segment::create(round_up(std::max<int64_t>(bytes, 1), page_bytes()));
    offer.range = segment->range(0);
  });
  refuse_on_all_ranks(group, no_offer, what);
  const at::Tensor words = at::empty({static_cast<int64_t>(sizeof(offer))}, at::kByte);
  std::memcpy(words.mutable_data_ptr(), &offer, sizeof(offer));
  group.broadcast(words, /*root=*/0, name)->wait();
  std::memcpy(&offer, words.const_data_ptr(), sizeof(offer));

  const std::string no_segment = thrown_by([&] {
    TORCH_CHECK(offer.bytes == bytes, "got ", bytes, " bytes where rank 0 asked for ", offer.bytes,
                ", expected equal sizes on all ranks");
    if (rank_ != 0) segment = Segment::open(offer.range);
  });
  refuse_on_all_ranks(group, no_segment, what);

  // From here on a problem only prevents sharing, because ranks can keep copies instead.
  std::unique_ptr<SharedBuffer> buffer;
  const std::string unshared = thrown_by(
      [&] { buffer = std::make_unique<SharedPages>(segment, offer.range, bytes, rank_); });
  const std::vector<std::string> problems = group.all_gather_bytes(unshared, name);
  const auto first = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& problem) { return !problem.empty(); });
  if (first == problems.end()) return buffer;
  // One warning is enough, because later buffers would fail for the same reason.
  if (rank_ == 0) {
    TORCH_WARN_ONCE("[comm] ", what, ": every rank keeps a copy of its own, for rank ",
                    first - problems.begin(), " cannot share: ", *first);
  }
  return nullptr;
}

}  // namespace tessera::internal::shm
