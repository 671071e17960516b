#pragma once

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// For train_on_threads() on GPUs: replaces a world's groups by groups of this kind, with rank r on
/// GPU r, so that LibTorch's backward has a thread for each rank.
Decorate staged_over_host();
/// NCCL, real or fake. Only for one run.
Decorate over_nccl();
/// A world of one without NCCL.
Decorate alone();

/// The largest number of ranks that can be threads here: one per GPU.
int most_rank_threads();

}  // namespace tessera::internal::testing
