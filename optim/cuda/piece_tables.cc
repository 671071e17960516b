#include "tessera/optim/cuda/piece_tables.h"

#include <cstring>

namespace tessera::internal::cuda {
namespace {

constexpr int64_t kPieceWords = sizeof(Piece) / sizeof(int64_t);
static_assert(sizeof(Piece) == kPieceWords * sizeof(int64_t));

}  // namespace

PieceTables::PieceTables(Device& device, const std::vector<std::vector<Piece>>& lists) {
  for (const std::vector<Piece>& list : lists) {
    begins_.push_back(begins_.back() + static_cast<int64_t>(list.size()));
  }
  const int64_t words = begins_.back() * kPieceWords;
  on_host_ = device.allocate_on_host(words, at::kLong);
  on_device_ = device.allocate(words, at::kLong);
  if (words == 0) return;
  auto* to = static_cast<Piece*>(on_host_.mutable_data_ptr());
  for (const std::vector<Piece>& list : lists) {
    if (!list.empty()) std::memcpy(to, list.data(), list.size() * sizeof(Piece));
    to += list.size();
  }
  device.current_stream()->copy(on_device_, on_host_);
}

const Piece* PieceTables::pieces(size_t list) const {
  return static_cast<const Piece*>(on_device_.const_data_ptr()) + begins_[list];
}

}  // namespace tessera::internal::cuda
