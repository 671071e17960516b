#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/shm/link.h"
#include "tessera/core/memory/copy_kernels.h"
#include "tessera/window.h"

namespace tessera::internal::shm {
namespace {

/// The ranks' parts of a window, each in a mapping of that rank's arena. Keeps alive the mappings,
/// and the pages with the failure state, but neither the link nor the world.
class Memory final : public RemoteMemory {
 public:
  /// Requires that all ranks have posted `call`, a make_window(). Maps segments if necessary.
  Memory(const Link& link, const Call& call)
      : group_poison_(link.memory(), &link.channel().poison),
        world_poison_(link.world().segment(), &link.world().poison()),
        sources_(static_cast<size_t>(link.size())) {
    if (call.collective().input.numel() == 0) return;
    for (size_t rank = 0; rank < sources_.size(); ++rank) {
      const SharedRange& range = link.call_of(static_cast<int>(rank), call.sequence()).source;
      const std::shared_ptr<Segment> segment = Segment::open(range);
      sources_[rank] = {segment, segment->data() + range.offset_bytes};
    }
  }

  std::string failure() const override {
    const Poison& poison = group_poison_->is_set() ? *group_poison_ : *world_poison_;
    return poison.is_set() ? poison.cause() : "";
  }

  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view /*tag*/, int64_t /*version*/) override {
    char* const target = data_of(to);
    const char* const source = sources_[static_cast<size_t>(rank)].get() + begin_bytes;
    const auto bytes = static_cast<int64_t>(to.nbytes());
    // If a rank reads its own memory, source and target may overlap.
    const bool is_apart = target + bytes <= source || source + bytes <= target;
    // streaming_pays() decides by this read alone, because the other reads of the same unit are not
    // known here. So it chooses ordinary copies more often than it would for all the reads
    // together.
    if (is_apart && streaming_pays(bytes, static_cast<int>(sources_.size()))) {
      copy_streaming(target, source, bytes);
    } else {
      std::memmove(target, source, to.nbytes());
    }
    return completed_work();
  }

  int64_t load(int rank, int64_t begin_bytes) override {
    return load_word(sources_[static_cast<size_t>(rank)].get() + begin_bytes);
  }

 private:
  // Each pointer keeps alive the mapping into which it points.
  const std::shared_ptr<const Poison> group_poison_;
  const std::shared_ptr<const Poison> world_poison_;
  std::vector<std::shared_ptr<const char>> sources_;  // by rank; null for empty windows
};

}  // namespace

void Link::open_window(Call& call) {
  const std::vector<int> culprits =
      ranks_where([&](int rank) { return call_of(rank, call.sequence()).is_private; });
  if (culprits.empty()) {
    call.made().memory = std::make_shared<Memory>(*this, call);
    return;
  }
  call.made().problem = absl::StrCat(
      "[comm] make_window '", call.tag(), "': got private memory on ",
      absl::StrJoin(culprits, ", ", [&](std::string* text, int rank) { *text += name_of(rank); }),
      ", expected memory that peers can map; it must come from allocate()");
}

}  // namespace tessera::internal::shm
