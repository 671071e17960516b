// libtessera_cuda.so on the CPU: every entry point of abi.h queues the kernels' own bodies on a
// host stream (HostStreamHandle*), over host memory. It is opened at run time like the real module
// (TESSERA_CUDA_MODULE), so the whole device path runs on a machine without a GPU. Arguments are
// copied before a call returns, as a launch does. Work on the null stream runs in the call.
#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/gradient_bodies.h"
#include "tessera/optim/cuda/step_bodies.h"
#include "tessera/optim/cuda/update_body.h"
#include "tessera/optim/cuda/with_elements.h"
#include "tessera/tests/optim/cuda/emulation.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::cuda {
namespace {

using testing::HostStreamHandle;

/// Odd numbers, so that shares are uneven; small ones, because all threads run one after the other.
constexpr Launch kLaunch = {3, 5};

template <typename Work>
int queue(void* stream, Work work) {
  if (stream == nullptr) {
    work();
    return 0;
  }
  const auto& handle = *static_cast<HostStreamHandle*>(stream);
  Work* const own = new Work(std::move(work));
  const auto run = [](void* argument) { (*static_cast<Work*>(argument))(); };
  const auto drop = [](void* argument) { delete static_cast<Work*>(argument); };
  if (handle.enqueue_repeatable != nullptr) {
    handle.enqueue_repeatable(handle.stream, run, drop, own);
    return 0;
  }
  handle.enqueue(
      handle.stream,
      [](void* argument) {
        const std::unique_ptr<Work> queued(static_cast<Work*>(argument));
        (*queued)();
      },
      own);
  return 0;
}

/// Runs all threads of a launch over elements.
template <typename Body>
void run_grid(const Body& body) {
  run_workers(kLaunch.blocks * kLaunch.threads, body);
}

/// Runs all threads of a launch over pieces.
template <typename Body>
void run_blocks(const Body& body) {
  run_workers(kLaunch.blocks, [&](Worker block) {
    run_workers(kLaunch.threads, [&](Worker thread) { body(block, thread); });
  });
}

struct Words {
  int64_t* words;
  void add(size_t word, int64_t amount) { words[word] += amount; }
};

}  // namespace

extern "C" int tessera_cuda_interface_version() { return kInterfaceVersion; }

extern "C" const char* tessera_cuda_error_text(int status) {
  if (status == kRefusedDtype) return "the dtype is none of Float, BFloat16 and Half";
  if (status == kRefusedArgument) return "an argument is null, negative or out of range";
  return "no error that the fake knows";
}

extern "C" int tessera_cuda_zero(void* to, int64_t bytes, void* stream) {
  if (bytes < 0) return kRefusedArgument;
  return queue(stream, [=] { std::fill_n(static_cast<char*>(to), bytes, char{0}); });
}

extern "C" int tessera_cuda_accumulate(float* sum, const void* gradient, Dtype dtype, int64_t numel,
                                       void* stream) {
  if (numel < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&](const auto* elements) {
    return queue(stream, [=] {
      run_grid([&](Worker thread) { accumulate_body(sum, elements, numel, thread); });
    });
  });
}

extern "C" int tessera_cuda_cast(void* target, Dtype dtype, const float* values, int64_t numel,
                                 void* stream) {
  if (numel < 0) return kRefusedArgument;
  return with_elements(dtype, target, [&]<typename Target>(const Target*) {
    return queue(stream, [=] {
      run_grid(
          [&](Worker thread) { cast_body(static_cast<Target*>(target), values, numel, thread); });
    });
  });
}

extern "C" int tessera_cuda_count_non_finite(const void* gradient, Dtype dtype, const Piece* pieces,
                                             int64_t piece_count, int64_t* counts, void* stream) {
  if (piece_count < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&](const auto* elements) {
    return queue(stream, [=] {
      Words sink = {counts};
      run_blocks([&](Worker block, Worker thread) {
        count_body(elements, pieces, piece_count, block, thread, sink);
      });
    });
  });
}

extern "C" int tessera_cuda_add_squares(const void* gradient, Dtype dtype, const Piece* pieces,
                                        int64_t piece_count, int64_t* words, void* stream) {
  if (piece_count < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&](const auto* elements) {
    return queue(stream, [=] {
      Words sink = {words};
      run_blocks([&](Worker block, Worker group) {
        square_body(elements, pieces, piece_count, block, group, SerialLanes(), sink);
      });
    });
  });
}

extern "C" int tessera_cuda_normalize(int64_t* words, void* stream) {
  return queue(stream, [=] { exact_normalize(words); });
}

extern "C" int tessera_cuda_decide(const DecideArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->parameters < 0 || arguments->world_size < 1 ||
      arguments->world_size > kMaxRanks) {
    return kRefusedArgument;
  }
  return queue(stream, [by = *arguments] {
    int64_t non_finite = 0;
    run_workers(kLaunch.threads,
                [&](Worker thread) { non_finite += non_finite_share(by, thread); });
    *by.outcome = decide_body(by, non_finite);
  });
}

extern "C" int tessera_cuda_update_loss_scale(LossScaleState* state, LossScaleRule rule,
                                              const StepOutcome* outcome, void* stream) {
  return queue(stream, [=] { *state = loss_scale_body(*state, rule, *outcome); });
}

extern "C" int tessera_cuda_advance(const AdvanceArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->count < 0) return kRefusedArgument;
  return queue(stream,
               [by = *arguments] { run_grid([&](Worker thread) { advance_body(by, thread); }); });
}

extern "C" int tessera_cuda_update(const UpdateArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->piece_count < 0) return kRefusedArgument;
  return with_update(*arguments, [stream](const auto& arrays, const UpdatePieces& of) {
    return queue(stream, [=] {
      run_blocks([&](Worker block, Worker thread) { update_body(arrays, of, block, thread); });
    });
  });
}

}  // namespace tessera::internal::cuda
