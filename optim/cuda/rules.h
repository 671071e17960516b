#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/core/numbers/device_code.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/power.h"
#include "tessera/optim/formulas/adagrad_element.h"
#include "tessera/optim/formulas/adam_element.h"
#include "tessera/optim/formulas/adamw_element.h"
#include "tessera/optim/formulas/lion_element.h"
#include "tessera/optim/formulas/rmsprop_element.h"
#include "tessera/optim/formulas/sgd_element.h"

// The formulas of optim/formulas as the kernels call them. A rule has
//   kStates                         the number of its Algorithm's states; arrays follow their order
//   Numbers                         the hyper-parameters of a parameter group
//   is_counted(numbers)             returns true if an update raises the parameter's step count
//   Scalars, scalars(numbers, step, gradient_scale)
//                                   one parameter's numbers for its update number `step`
//   element(value, gradient, states, scalars)
//                                   updates one element in place
// Choices that a formula makes at compile time on the CPU are made here at run time, per parameter:
// a thread block updates a piece of one parameter, so all its threads choose alike.
namespace tessera::internal::cuda {

struct AdamwRule {
  static constexpr int kStates = 3;
  using Numbers = AdamHyperParameters;
  struct Scalars {
    AdamwScalars<float> by;
    bool is_amsgrad;
  };

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers&) { return true; }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t step, double scale) {
    return {adamw_scalars<float>(adamw_coefficients(group, power_of(group.beta1, step),
                                                    power_of(group.beta2, step), scale)),
            group.is_amsgrad};
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    const AdamwElement<float> before = {value, states[0], states[1]};
    const AdamwElement<float> after = scalars.is_amsgrad
                                          ? amsgrad_element(before, states[2], gradient, scalars.by)
                                          : adamw_element(before, gradient, scalars.by);
    value = after.value;
    states[0] = after.moment1;
    states[1] = after.moment2;
  }
};

struct AdamRule {
  static constexpr int kStates = 3;
  using Numbers = AdamHyperParameters;
  struct Scalars {
    AdamScalars<float> by;
    bool is_amsgrad;
  };

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers&) { return true; }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t step, double scale) {
    return {adam_scalars<float>(adam_coefficients(group, power_of(group.beta1, step),
                                                  power_of(group.beta2, step), scale)),
            group.is_amsgrad};
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    auto& [m, v, maximum] = states;
    if (scalars.by.weight_decay == 0.0F && !scalars.is_amsgrad) {
      adam_element<false, false>(value, gradient, m, v, maximum, scalars.by);
    } else if (scalars.by.weight_decay == 0.0F) {
      adam_element<false, true>(value, gradient, m, v, maximum, scalars.by);
    } else if (!scalars.is_amsgrad) {
      adam_element<true, false>(value, gradient, m, v, maximum, scalars.by);
    } else {
      adam_element<true, true>(value, gradient, m, v, maximum, scalars.by);
    }
  }
};

struct SgdRule {
  static constexpr int kStates = 1;
  using Numbers = SgdHyperParameters;
  struct Scalars {
    SgdScalars<float> by;
    SgdMomentum momentum;
    bool is_nesterov;
  };

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers& group) { return sgd_is_counted(group); }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t step, double scale) {
    const SgdCoefficients now = sgd_coefficients(group, step, scale);
    const SgdMomentum momentum = now.momentum == 0.0 ? SgdMomentum::kNone
                                 : now.is_first      ? SgdMomentum::kBegins
                                                     : SgdMomentum::kGoesOn;
    return {sgd_scalars<float>(now), momentum, now.is_nesterov};
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    if (scalars.by.weight_decay == 0.0F) {
      with_momentum<false>(value, gradient, states[0], scalars);
    } else {
      with_momentum<true>(value, gradient, states[0], scalars);
    }
  }

 private:
  template <bool kDecays>
  TESSERA_DEVICE_CODE static void with_momentum(float& value, float gradient, float& momentum,
                                                const Scalars& scalars) {
    using enum SgdMomentum;
    if (scalars.momentum == kNone) {
      sgd_element<kDecays, kNone, false>(value, gradient, momentum, scalars.by);
    } else if (scalars.momentum == kBegins) {
      scalars.is_nesterov
          ? sgd_element<kDecays, kBegins, true>(value, gradient, momentum, scalars.by)
          : sgd_element<kDecays, kBegins, false>(value, gradient, momentum, scalars.by);
    } else {
      scalars.is_nesterov
          ? sgd_element<kDecays, kGoesOn, true>(value, gradient, momentum, scalars.by)
          : sgd_element<kDecays, kGoesOn, false>(value, gradient, momentum, scalars.by);
    }
  }
};

struct LionRule {
  static constexpr int kStates = 1;
  using Numbers = LionHyperParameters;
  using Scalars = LionScalars<float>;

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers&) { return true; }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t /*step*/, double scale) {
    return lion_scalars<float>(lion_coefficients(group, scale));
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    lion_element(value, gradient, states[0], scalars);
  }
};

struct AdagradRule {
  static constexpr int kStates = 1;
  using Numbers = AdagradHyperParameters;
  using Scalars = AdagradScalars<float>;

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers&) { return true; }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t step, double scale) {
    return adagrad_scalars<float>(adagrad_coefficients(group, step, scale));
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    if (scalars.weight_decay == 0.0F) {
      adagrad_element<false>(value, gradient, states[0], scalars);
    } else {
      adagrad_element<true>(value, gradient, states[0], scalars);
    }
  }
};

struct RmspropRule {
  static constexpr int kStates = 3;
  using Numbers = RmspropHyperParameters;
  struct Scalars {
    RmspropScalars<float> by;
    bool is_centered;
    bool has_momentum;
  };

  TESSERA_DEVICE_CODE static bool is_counted(const Numbers&) { return true; }
  TESSERA_DEVICE_CODE static Scalars scalars(const Numbers& group, int64_t /*step*/, double scale) {
    return {rmsprop_scalars<float>(rmsprop_coefficients(group, scale)), group.is_centered,
            group.momentum > 0.0};
  }
  TESSERA_DEVICE_CODE static void element(float& value, float gradient, float (&states)[kStates],
                                          const Scalars& scalars) {
    if (scalars.by.weight_decay == 0.0F) {
      with_means<false>(value, gradient, states, scalars);
    } else {
      with_means<true>(value, gradient, states, scalars);
    }
  }

 private:
  template <bool kDecays>
  TESSERA_DEVICE_CODE static void with_means(float& value, float gradient, float (&states)[kStates],
                                             const Scalars& scalars) {
    auto& [square, momentum, mean] = states;
    if (scalars.is_centered && scalars.has_momentum) {
      rmsprop_element<kDecays, true, true>(value, gradient, square, momentum, mean, scalars.by);
    } else if (scalars.is_centered) {
      rmsprop_element<kDecays, true, false>(value, gradient, square, momentum, mean, scalars.by);
    } else if (scalars.has_momentum) {
      rmsprop_element<kDecays, false, true>(value, gradient, square, momentum, mean, scalars.by);
    } else {
      rmsprop_element<kDecays, false, false>(value, gradient, square, momentum, mean, scalars.by);
    }
  }
};

/// Calls use() with an object of the type that has `rule`; returns kRefusedArgument if `rule` is no
/// Rule.
template <typename Use>
TESSERA_DEVICE_CODE inline int with_rule(Rule rule, const Use& use) {
  switch (rule) {
    case Rule::kAdamw:
      return use(AdamwRule());
    case Rule::kAdam:
      return use(AdamRule());
    case Rule::kSgd:
      return use(SgdRule());
    case Rule::kLion:
      return use(LionRule());
    case Rule::kAdagrad:
      return use(AdagradRule());
    case Rule::kRmsprop:
      return use(RmspropRule());
  }
  return kRefusedArgument;
}

/// Read and write a value that is kept in the bytes of GroupNumbers or ParameterUpdate.
template <typename Value, typename Bytes>
TESSERA_DEVICE_CODE inline Value read_bytes(const Bytes& bytes) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(Bytes));
  Value value;
  memcpy(&value, bytes, sizeof(value));
  return value;
}
template <typename Value, typename Bytes>
TESSERA_DEVICE_CODE inline void write_bytes(Bytes& bytes, const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(Bytes));
  memcpy(bytes, &value, sizeof(value));
}

}  // namespace tessera::internal::cuda
