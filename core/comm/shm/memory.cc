#include "tessera/core/comm/shm/memory.h"

#include <cstdint>
#include <cstring>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/window.h"

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

Memory::Memory(const Link& link, const Call& call)
    : group_memory_(link.memory()),
      world_memory_(link.world().segment()),
      group_poison_(link.channel().poison),
      world_poison_(link.world().poison()) {
  const auto ranks = static_cast<size_t>(link.size());
  segments_.resize(ranks);
  sources_.resize(ranks);
  if (call.collective().input.numel() == 0) return;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const SharedRange& range = link.call_of(static_cast<int>(rank), call.sequence()).source;
    segments_[rank] = Segment::open(range);
    sources_[rank] = segments_[rank]->data() + range.offset_bytes;
  }
}

std::string Memory::failure() const {
  const Poison& poison = group_poison_.is_set() ? group_poison_ : world_poison_;
  return poison.is_set() ? poison.cause() : "";
}

std::shared_ptr<Work> Memory::read(int rank, int64_t begin_bytes, const at::Tensor& to,
                                   std::string_view /*tag*/, int64_t /*version*/) {
  auto* const target = static_cast<char*>(to.data_ptr());
  const char* const source = sources_[static_cast<size_t>(rank)] + begin_bytes;
  const auto bytes = static_cast<int64_t>(to.nbytes());
  // The other reads of a unit are not known here; leaving them out errs towards the caches.
  if (streaming_pays(bytes, static_cast<int>(sources_.size())) && !overlap(target, source, bytes)) {
    copy_streaming(target, source, bytes);
  } else {
    std::memmove(target, source, to.nbytes());
  }
  return completed_work();
}

int64_t Memory::load(int rank, int64_t begin_bytes) {
  return load_word(sources_[static_cast<size_t>(rank)] + begin_bytes);
}

}  // namespace tessera::internal::shm
