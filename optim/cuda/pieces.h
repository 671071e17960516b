#pragma once

#include <cstdint>
#include <vector>

#include "tessera/flat_layout.h"
#include "tessera/optim/cuda/abi.h"

namespace tessera::internal::cuda {

/// Elements of a piece, at most: 4 packs for each thread of a block. A multiple of 64.
inline constexpr int64_t kPieceNumel = 4096;

/// Returns the segments of a slice cut into pieces for the kernels: each inside one segment and of
/// at most kPieceNumel elements, so that a launch is even however large the parameters are. In the
/// order of the segments; without padding. 16 bytes per piece. Local; called once per slice. Throws
/// c10::Error if a segment does not start on a multiple of 64 elements of its parameter.
std::vector<Piece> cut_into_pieces(const std::vector<Segment>& segments);

}  // namespace tessera::internal::cuda
