#pragma once

#include "tessera/tests/support/fake_cuda/fake_cuda.h"

namespace tessera::internal::testing {

/// Gives the process GPUs, before LibTorch is asked for any: with TESSERA_TEST_GPU=1 in the
/// environment the machine's own, with its libraries; otherwise the fakes that are built with the
/// tests, 8 GPUs unless FAKE_CUDA_DEVICES says otherwise. Call it first in main(), before there are
/// threads. Throws std::runtime_error that lists everything missing.
void load_gpu_for_tests();

/// The fake GPUs' controls; null on real GPUs.
FakeCuda* fake_gpu();

}  // namespace tessera::internal::testing
