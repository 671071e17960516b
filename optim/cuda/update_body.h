#pragma once

#include <cstdint>
#include <type_traits>

#include "tessera/core/numbers/device_code.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/narrow.h"
#include "tessera/optim/cuda/rules.h"
#include "tessera/optim/cuda/walk.h"
#include "tessera/optim/cuda/with_elements.h"

namespace tessera::internal::cuda {

/// Does one thread's share of tessera_cuda_advance.
TESSERA_DEVICE_CODE inline void advance_body(const AdvanceArguments& arguments, Worker thread) {
  const StepOutcome& outcome = *arguments.outcome;
  for (int64_t i = thread.index; i < arguments.count; i += thread.count) {
    ParameterUpdate& update = arguments.updates[i];
    update.applies = outcome.applies != 0 && arguments.used[i] > 0 ? 1 : 0;
    if (update.applies == 0) continue;
    const GroupNumbers& group = arguments.groups[arguments.group_of[i]];
    int64_t& step = arguments.steps[i];
    with_rule(group.rule, [&]<typename Rule>(Rule) {
      const auto numbers = read_bytes<typename Rule::Numbers>(group.numbers);
      if (Rule::is_counted(numbers)) ++step;
      write_bytes(update.scalars, Rule::scalars(numbers, step, outcome.gradient_scale));
      return 0;
    });
  }
}

/// The arrays that an update reads and writes. Target is void if UpdateArguments::target is null:
/// then the new values are written to `values` only.
template <typename Rule, typename Gradient, typename Target>
struct UpdateArrays {
  float* values;
  const Gradient* gradient;
  float* states[Rule::kStates];  ///< null if the parameters do not have the state
  Target* target;

  /// Returns the arrays from the first element of a piece on: element `begin` of the slice, and the
  /// piece's `places` in the states.
  TESSERA_DEVICE_CODE UpdateArrays from(int64_t begin, const StatePlaces& places) const {
    UpdateArrays later = {values + begin, gradient + begin, {}, nullptr};
    for (int i = 0; i < Rule::kStates; ++i) {
      if (places.begin[i] >= 0) later.states[i] = states[i] + places.begin[i];
    }
    if constexpr (!std::is_void_v<Target>) later.target = target + begin;
    return later;
  }

  TESSERA_DEVICE_CODE PackRange range(int64_t numel) const {
    return pack_range_where(numel, [this](int64_t at) {
      bool begin = begins_pack(values, at) && begins_pack(gradient, at);
      for (const float* state : states)
        begin = begin && (state == nullptr || begins_pack(state, at));
      if constexpr (!std::is_void_v<Target>) begin = begin && begins_pack(target, at);
      return begin;
    });
  }
};

/// Visitor for walk(): updates one element, or a pack, all of whose loads come before its stores.
template <typename Rule, typename Gradient, typename Target>
struct UpdateVisitor {
  UpdateArrays<Rule, Gradient, Target> arrays;
  typename Rule::Scalars scalars;

  TESSERA_DEVICE_CODE void single(int64_t i) const {
    float states[Rule::kStates];
    for (int state = 0; state < Rule::kStates; ++state) {
      states[state] = arrays.states[state] != nullptr ? arrays.states[state][i] : 0.0F;
    }
    float value = arrays.values[i];
    Rule::element(value, widen(arrays.gradient[i]), states, scalars);
    arrays.values[i] = value;
    for (int state = 0; state < Rule::kStates; ++state) {
      if (arrays.states[state] != nullptr) arrays.states[state][i] = states[state];
    }
    if constexpr (!std::is_void_v<Target>) arrays.target[i] = narrow<Target>(value);
  }

  TESSERA_DEVICE_CODE void pack(int64_t begin) const {
    const Pack<Gradient> gradient = load_pack(arrays.gradient + begin);
    Pack<float> values = load_pack(arrays.values + begin);
    Pack<float> states[Rule::kStates] = {};
    for (int state = 0; state < Rule::kStates; ++state) {
      if (arrays.states[state] != nullptr) states[state] = load_pack(arrays.states[state] + begin);
    }
    for (int i = 0; i < kPackNumel; ++i) {
      float own[Rule::kStates];
      for (int state = 0; state < Rule::kStates; ++state) own[state] = states[state].at[i];
      Rule::element(values.at[i], widen(gradient.at[i]), own, scalars);
      for (int state = 0; state < Rule::kStates; ++state) states[state].at[i] = own[state];
    }
    store_pack(arrays.values + begin, values);
    for (int state = 0; state < Rule::kStates; ++state) {
      if (arrays.states[state] != nullptr) store_pack(arrays.states[state] + begin, states[state]);
    }
    if constexpr (!std::is_void_v<Target>) {
      Pack<Target> target;
      for (int i = 0; i < kPackNumel; ++i) target.at[i] = narrow<Target>(values.at[i]);
      store_pack(arrays.target + begin, target);
    }
  }
};

/// The pieces that a launch updates, and what belongs to them, as in UpdateArguments.
struct UpdatePieces {
  const Piece* pieces;
  const StatePlaces* places;
  int64_t count;
  const ParameterUpdate* updates;
};

/// Does one thread's share of tessera_cuda_update: thread blocks take pieces in turn, and the
/// threads of a block share a piece.
template <typename Rule, typename Gradient, typename Target>
TESSERA_DEVICE_CODE inline void update_body(const UpdateArrays<Rule, Gradient, Target>& arrays,
                                            const UpdatePieces& of, Worker block, Worker thread) {
  for (int64_t i = block.index; i < of.count; i += block.count) {
    const Piece piece = of.pieces[i];
    const ParameterUpdate& update = of.updates[piece.parameter];
    if (update.applies == 0) continue;
    const UpdateArrays<Rule, Gradient, Target> own = arrays.from(piece.begin, of.places[i]);
    walk(own.range(piece.numel), thread,
         UpdateVisitor<Rule, Gradient, Target>{own,
                                               read_bytes<typename Rule::Scalars>(update.scalars)});
  }
}

/// Calls launch(arrays, pieces) with the rule and the dtypes that `by` names as template arguments,
/// and returns its result. Returns a kRefused... of abi.h if `by` names no Rule or no Dtype.
template <typename Launch>
int with_update(const UpdateArguments& by, const Launch& launch) {
  const UpdatePieces pieces = {by.pieces, by.places, by.piece_count, by.updates};
  return with_rule(by.rule, [&]<typename Rule>(Rule) {
    return with_elements(
        by.gradient_dtype, by.gradient, [&]<typename Gradient>(const Gradient* gradient) {
          const auto launch_to = [&]<typename Target>(Target* target) {
            UpdateArrays<Rule, Gradient, Target> arrays = {by.values, gradient, {}, target};
            for (int i = 0; i < Rule::kStates; ++i) arrays.states[i] = by.states[i];
            return launch(arrays, pieces);
          };
          if (by.target == nullptr) return launch_to(static_cast<void*>(nullptr));
          return with_elements(by.target_dtype, by.target, [&]<typename Target>(const Target*) {
            return launch_to(static_cast<Target*>(by.target));
          });
        });
  });
}

}  // namespace tessera::internal::cuda
