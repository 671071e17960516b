#include "tessera/core/comm/shm/window.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {
namespace {

// Rank threads share one mapping, so a rank that reads its own memory may copy to where it reads.
bool overlap(const char* a, const char* b, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  const auto distance = first < second ? second - first : first - second;
  return distance < static_cast<uintptr_t>(bytes);
}

}  // namespace

Window::Window(Member& member, at::Tensor own)
    : own_(std::move(own)),
      rank_(member.rank()),
      world_rank_(member.world().rank()),
      group_name_(member.group_name()),
      group_memory_(member.memory()),
      world_memory_(member.world().segment()),
      group_poison_(member.poison()),
      world_poison_(member.world().poison()),
      segments_(member.size()),
      sources_(member.size()) {
  if (own_.numel() == 0) return;
  for (int rank = 0; rank < member.size(); ++rank) {
    const SharedRange& range = member.call_of(rank).source;
    segments_[rank] = Segment::open(range);
    sources_[rank] = segments_[rank]->data() + range.offset_bytes;
  }
}

void Window::require_own_process(const char* op, std::string_view tag) const {
  if (origin_.is_here()) return;
  throw CommError({op, group_name_, -1, rank_, std::string(tag)},
                  origin_.fork_error(absl::StrCat("rank ", world_rank_)));
}

std::shared_ptr<Work> Window::start_read(int rank, int64_t begin, const at::Tensor& to,
                                         std::string_view tag, int64_t /*version*/) {
  check_read(rank, begin, to, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  require_own_process("read", tag);
  for (const Poison* poison : {&group_poison_, &world_poison_}) {
    if (!poison->is_set()) continue;
    throw CommError({"read", group_name_, -1, rank_, std::string(tag)}, poison->cause());
  }
  if (to.numel() == 0) return completed_work();
  auto* const target = static_cast<char*>(to.data_ptr());
  const char* const source = sources_[rank] + begin * static_cast<int64_t>(to.element_size());
  const auto bytes = static_cast<int64_t>(to.nbytes());
  // The other reads of a unit are not known here; leaving them out errs towards the caches.
  if (streaming_pays(bytes, static_cast<int>(sources_.size())) && !overlap(target, source, bytes)) {
    copy_streaming(target, source, bytes);
  } else {
    std::memmove(target, source, to.nbytes());
  }
  return completed_work();
}

int64_t Window::load(int rank, int64_t index) const {
  check_word(rank, index, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  require_own_process("load", "");
  return load_word(sources_[rank] + index * static_cast<int64_t>(sizeof(int64_t)));
}

void Window::store(int64_t index, int64_t value) {
  check_word(rank_, index, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  require_own_process("store", "");
  store_word(own_.mutable_data_ptr<int64_t>() + index, value);
}

}  // namespace tessera::internal::shm
