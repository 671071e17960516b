#pragma once

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// For train_on_threads() on GPUs: puts groups of this kind in the place of a world's, rank r on
/// GPU r, so that LibTorch's backward has a thread for each rank.
Decorate staged_over_host();
/// NCCL: the machine's, or the fake one. Good for one run.
Decorate over_nccl();
/// A world of one without NCCL.
Decorate alone();

/// How many ranks can be threads here: one per GPU.
int most_rank_threads();

}  // namespace tessera::internal::testing
