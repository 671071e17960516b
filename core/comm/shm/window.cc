#include "tessera/core/comm/shm/window.h"

#include <cstring>
#include <utility>

#include "tessera/core/errors.h"

namespace tessera::shm {

Window::Window(Member& member, at::Tensor own)
    : own_(std::move(own)),
      rank_(member.rank()),
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

void Window::read(int rank, int64_t begin, const at::Tensor& to, std::string_view tag) {
  check_read(rank, begin, to, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  for (const Poison* poison : {&group_poison_, &world_poison_}) {
    if (!poison->is_set()) continue;
    throw CommError({"read", group_name_, -1, rank_, std::string(tag)}, poison->cause());
  }
  if (to.numel() == 0) return;
  // Rank threads share one mapping, so `to` may overlap what is read.
  const auto element = static_cast<int64_t>(to.element_size());
  std::memmove(to.data_ptr(), sources_[rank] + begin * element, to.nbytes());
}

int64_t Window::load(int rank, int64_t index) const {
  check_word(rank, index, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  return load_word(sources_[rank] + index * static_cast<int64_t>(sizeof(int64_t)));
}

void Window::store(int64_t index, int64_t value) {
  check_word(rank_, index, static_cast<int>(sources_.size()), own_.numel(), own_.scalar_type());
  store_word(own_.mutable_data_ptr<int64_t>() + index, value);
}

}  // namespace tessera::shm
