#include "tessera/fsdp/window_source.h"

#include <algorithm>
#include <utility>

namespace tessera::internal {

WindowSource::WindowSource(ProcessGroup& group, const SliceMap& slices, const FlatLayout& layout,
                           std::string name, const at::Tensor& shard, SecondShards second,
                           MemoryMeter& meter)
    : slices_(slices),
      layout_(layout),
      name_(std::move(name)),
      meter_(meter),
      owners_(slices.peers({SliceMap::Axis::kParameters})),
      first_(group.make_window(shard, name_)),
      seconds_(second) {
  if (seconds_.stamps == nullptr) return;
  second_shard_ = group.allocate(layout.numel() / seconds_.ranks, layout.dtype());
  second_ = group.make_window(second_shard_, name_ + " (second shard)");
  meter_.add(MemoryClass::kParameters, static_cast<int64_t>(second_shard_.nbytes()));
}

WindowSource::~WindowSource() {
  if (second_shard_.defined()) {
    meter_.remove(MemoryClass::kParameters, static_cast<int64_t>(second_shard_.nbytes()));
  }
}

int64_t WindowSource::fetch(const at::Tensor& to, From from) {
  ReadBatch reads;
  const int64_t bytes = start(to, from, reads);
  reads.wait();
  return bytes;
}

int64_t WindowSource::start(const at::Tensor& to, From from, ReadBatch& reads) const {
  if (from == From::kFirst || second_ == nullptr) {
    return start_first({0, layout_.numel()}, to, reads);
  }
  const int block = slices_.parameter_slice() / seconds_.ranks * seconds_.ranks;
  int64_t bytes = 0;
  for (int part = 0; part < seconds_.ranks; ++part) {
    const Range range = layout_.part(part, seconds_.ranks);
    const int owner = owners_[block + part];
    const at::Tensor target = to.narrow(0, range.begin, range.numel);
    if (seconds_.stamps->load(owner, seconds_.place) != update_) {
      bytes += start_first(range, target, reads);
      continue;
    }
    reads.add(second_->start_read(owner, 0, target, name_));
    if (owner != slices_.rank()) bytes += static_cast<int64_t>(target.nbytes());
  }
  return bytes;
}

/// Starts to read elements `range` of the unit from the first shards into `to`; element range.begin
/// of the unit goes to the first element of `to`. Returns the number of bytes that come from other
/// ranks.
int64_t WindowSource::start_first(Range range, const at::Tensor& to, ReadBatch& reads) const {
  int64_t bytes = 0;
  for (size_t slice = 0; slice < owners_.size(); ++slice) {
    const Range owned = layout_.part(static_cast<int>(slice), slices_.degrees().parameters);
    const int64_t begin = std::max(owned.begin, range.begin);
    const int64_t end = std::min(owned.end(), range.end());
    if (begin >= end) continue;
    const at::Tensor target = to.narrow(0, begin - range.begin, end - begin);
    reads.add(first_->start_read(owners_[slice], begin - owned.begin, target, name_, update_));
    if (owners_[slice] != slices_.rank()) bytes += static_cast<int64_t>(target.nbytes());
  }
  return bytes;
}

void WindowSource::keep_second(const at::Tensor& full) {
  if (second_ == nullptr || seconds_.stamps->load(slices_.rank(), seconds_.place) == update_)
    return;
  const Range range = layout_.part(slices_.parameter_slice() % seconds_.ranks, seconds_.ranks);
  second_shard_.copy_(full.narrow(0, range.begin, range.numel));
  seconds_.stamps->store(seconds_.place, update_);
}

}  // namespace tessera::internal
