#pragma once

#include <cstdint>
#include <vector>

#include "tessera/flat_layout.h"
#include "tessera/optim/cuda/abi.h"

namespace tessera::internal::cuda {

/// The largest number of elements of a piece: 4 packs for each thread of a block. A multiple of 64.
inline constexpr int64_t kPieceNumel = 4096;

/// Cuts the segments of a slice into pieces for the kernels. Each piece lies in one segment and has
/// at most kPieceNumel elements, so that blocks get equal work however large the parameters are.
/// The pieces are in the order of the segments, without padding. A piece takes 16 bytes. Local;
/// called once per slice. Throws c10::Error if a segment does not start on a multiple of 64
/// elements of its parameter.
std::vector<Piece> cut_into_pieces(const std::vector<Segment>& segments);

}  // namespace tessera::internal::cuda
