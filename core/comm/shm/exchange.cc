#include "tessera/core/comm/shm/exchange.h"

namespace tessera::internal::shm {

Exchange::Exchange(Member& member)
    : member_(member), arena_(member.world().arena()), sources_(member.size()) {}

Exchange::~Exchange() {
  if (staging_ != nullptr) arena_->free(staging_);
}

CallDescriptor Exchange::call_of(const Collective& collective) {
  if (posted_ != nullptr) return *posted_;
  return member_.next_call(collective.signature(), collective.tag);
}

CallDescriptor Exchange::call_of(const Collective& collective, const at::Tensor& tensor) {
  if (posted_ != nullptr) return *posted_;
  return next_call_of(collective, tensor);
}

CallDescriptor Exchange::next_call_of(const Collective& collective, const at::Tensor& tensor) {
  CallDescriptor call = member_.next_call(collective.signature(), collective.tag);
  if (tensor.numel() == 0) return call;
  if (const auto range = arena_->find(tensor.const_data_ptr(), tensor.nbytes())) {
    call.source = *range;
    return call;
  }
  if (staging_ == nullptr) staging_ = arena_->allocate(kStagingBytes);
  call.staged = true;
  call.source = *arena_->find(staging_, kStagingBytes);
  return call;
}

bool Exchange::anyone_staged() {
  for (int rank = 0; rank < size(); ++rank) {
    if (is_staged(rank)) return true;
  }
  return false;
}

bool Exchange::anyone_meets() {
  for (int rank = 0; rank < size(); ++rank) {
    if (member_.call_of(rank).meets) return true;
  }
  return false;
}

}  // namespace tessera::internal::shm
