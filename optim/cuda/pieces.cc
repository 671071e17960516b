#include "tessera/optim/cuda/pieces.h"

#include <algorithm>
#include <limits>

#include <c10/util/Exception.h>

namespace tessera::internal::cuda {

std::vector<Piece> cut_into_pieces(const std::vector<Segment>& segments) {
  constexpr int64_t kBlockNumel = 64;
  static_assert(kPieceNumel % kBlockNumel == 0);
  std::vector<Piece> pieces;
  for (const Segment& segment : segments) {
    TORCH_CHECK(segment.parameter_offset % kBlockNumel == 0,
                "[optim] segment: got parameter offset ", segment.parameter_offset,
                ", expected a multiple of ", kBlockNumel, "; take FlatLayout::segments");
    TORCH_CHECK(segment.parameter <= size_t{std::numeric_limits<int32_t>::max()},
                "[optim] segment: got parameter ", segment.parameter,
                ", expected an index below 2^31");
    for (int64_t at = 0; at < segment.numel; at += kPieceNumel) {
      pieces.push_back({.begin = segment.buffer_offset + at,
                        .numel = static_cast<int32_t>(std::min(kPieceNumel, segment.numel - at)),
                        .parameter = static_cast<int32_t>(segment.parameter)});
    }
  }
  return pieces;
}

}  // namespace tessera::internal::cuda
