#pragma once

#include <cstdint>
#include <type_traits>

#include "tessera/core/numbers/device_code.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/narrow.h"
#include "tessera/optim/cuda/power.h"
#include "tessera/optim/cuda/walk.h"
#include "tessera/optim/formulas/adamw_element.h"

namespace tessera::internal::cuda {

/// tessera_cuda_advance for one thread of the launch.
TESSERA_DEVICE_CODE inline void advance_body(const AdvanceArguments& arguments, Worker thread) {
  const StepOutcome& outcome = *arguments.outcome;
  for (int64_t i = thread.index; i < arguments.count; i += thread.count) {
    ParameterUpdate& update = arguments.updates[i];
    update.applies = outcome.applies != 0 && arguments.used[i] > 0 ? 1 : 0;
    if (update.applies == 0) continue;
    const int64_t step = ++arguments.steps[i];
    const AdamwHyperParameters& group = arguments.groups[arguments.group_of[i]];
    update.scalars = adamw_scalars<float>(adamw_coefficients(
        group, power_of(group.beta1, step), power_of(group.beta2, step), outcome.gradient_scale));
  }
}

/// What one update reads and writes. Target is void where the new values go nowhere else.
template <typename Gradient, typename Target>
struct AdamwArrays {
  float* values;
  const Gradient* gradient;
  float* moment1;
  float* moment2;
  Target* target;

  TESSERA_DEVICE_CODE AdamwArrays from(int64_t begin) const {
    AdamwArrays later = {values + begin, gradient + begin, moment1 + begin, moment2 + begin,
                         nullptr};
    if constexpr (!std::is_void_v<Target>) later.target = target + begin;
    return later;
  }

  TESSERA_DEVICE_CODE PackRange range(int64_t numel) const {
    if constexpr (std::is_void_v<Target>) {
      return pack_range(numel, values, gradient, moment1, moment2);
    } else {
      return pack_range(numel, values, gradient, moment1, moment2, target);
    }
  }
};

/// For walk(): the update of one element, or of a pack, whose loads all come before its stores.
template <typename Gradient, typename Target>
struct AdamwVisitor {
  AdamwArrays<Gradient, Target> arrays;
  AdamwScalars<float> scalars;

  TESSERA_DEVICE_CODE void single(int64_t i) const {
    const AdamwElement<float> after =
        adamw_element({arrays.values[i], arrays.moment1[i], arrays.moment2[i]},
                      widen(arrays.gradient[i]), scalars);
    arrays.values[i] = after.value;
    arrays.moment1[i] = after.moment1;
    arrays.moment2[i] = after.moment2;
    if constexpr (!std::is_void_v<Target>) arrays.target[i] = narrow<Target>(after.value);
  }

  TESSERA_DEVICE_CODE void pack(int64_t begin) const {
    const Pack<Gradient> gradient = load_pack(arrays.gradient + begin);
    Pack<float> values = load_pack(arrays.values + begin);
    Pack<float> moment1 = load_pack(arrays.moment1 + begin);
    Pack<float> moment2 = load_pack(arrays.moment2 + begin);
    for (int i = 0; i < kPackNumel; ++i) {
      const AdamwElement<float> after = adamw_element({values.at[i], moment1.at[i], moment2.at[i]},
                                                      widen(gradient.at[i]), scalars);
      values.at[i] = after.value;
      moment1.at[i] = after.moment1;
      moment2.at[i] = after.moment2;
    }
    store_pack(arrays.values + begin, values);
    store_pack(arrays.moment1 + begin, moment1);
    store_pack(arrays.moment2 + begin, moment2);
    if constexpr (!std::is_void_v<Target>) {
      Pack<Target> target;
      for (int i = 0; i < kPackNumel; ++i) target.at[i] = narrow<Target>(values.at[i]);
      store_pack(arrays.target + begin, target);
    }
  }
};

/// tessera_cuda_adamw for one thread: blocks take pieces in turn, the threads of a block share one.
template <typename Gradient, typename Target>
TESSERA_DEVICE_CODE inline void adamw_body(const AdamwArrays<Gradient, Target>& arrays,
                                           const Piece* pieces, int64_t piece_count,
                                           const ParameterUpdate* updates, Worker block,
                                           Worker thread) {
  for (int64_t i = block.index; i < piece_count; i += block.count) {
    const Piece piece = pieces[i];
    const ParameterUpdate& update = updates[piece.parameter];
    if (update.applies == 0) continue;
    const AdamwArrays<Gradient, Target> own = arrays.from(piece.begin);
    walk(own.range(piece.numel), thread, AdamwVisitor<Gradient, Target>{own, update.scalars});
  }
}

}  // namespace tessera::internal::cuda
