#include "tessera/core/comm/hosts/memory.h"

#include <utility>

#include "tessera/errors.h"
#include "tessera/window.h"

namespace tessera::internal::hosts {

Memory::Memory(HostLayout layout, int rank, std::string group, std::shared_ptr<RemoteMemory> inside,
               std::shared_ptr<RemoteMemory> flat, std::shared_ptr<ReadCache> cache, int64_t number)
    : layout_(std::move(layout)),
      rank_(rank),
      group_(std::move(group)),
      inside_(std::move(inside)),
      flat_(std::move(flat)),
      cache_(std::move(cache)),
      number_(number) {}

std::string Memory::failure() const {
  std::string cause = flat_->failure();
  return cause.empty() ? inside_->failure() : cause;
}

std::shared_ptr<Work> Memory::read(int rank, int64_t begin_bytes, const at::Tensor& to,
                                   std::string_view tag, int64_t version) {
  if (is_here(rank)) {
    return inside_->read(layout_.local_of(rank), begin_bytes, to, tag, version);
  }
  if (version == Window::kUnversioned) {
    return flat_->read(rank, begin_bytes, to, tag, version);
  }
  const ReadKey key{.window = number_,
                    .rank = rank,
                    .begin = begin_bytes,
                    .bytes = static_cast<int64_t>(to.nbytes()),
                    .version = version};
  const auto fetch = [flat = flat_, rank, begin_bytes, tag = std::string(tag),
                      version](const at::Tensor& memory) {
    return flat->read(rank, begin_bytes, memory, tag, version);
  };
  const auto check = [flat = flat_, inside = inside_, group = group_, rank = rank_,
                      tag = std::string(tag)] {
    for (const auto& memory : {flat, inside}) {
      const std::string cause = memory->failure();
      if (!cause.empty()) throw CommError({"read", group, -1, rank, tag}, cause);
    }
  };
  return ReadCache::start_read(cache_, key, to, fetch, check);
}

int64_t Memory::load(int rank, int64_t begin_bytes) {
  return is_here(rank) ? inside_->load(layout_.local_of(rank), begin_bytes)
                       : flat_->load(rank, begin_bytes);
}

}  // namespace tessera::internal::hosts
