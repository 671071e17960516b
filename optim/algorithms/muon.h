#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// Muon for matrices (MuonOptions). fp32 and fp64. On processors with fused multiply-adds a step
/// over a whole matrix has the bits of torch.optim.Muon's operations. Note [Whole tensors] in
/// whole_update.h.
const Algorithm& muon_algorithm();

}  // namespace tessera::internal
