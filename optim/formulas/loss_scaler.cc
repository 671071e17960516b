#include "tessera/optim/formulas/loss_scaler.h"

#include <cmath>

#include <c10/util/Exception.h>

#include "tessera/core/numbers/fp32_factor.h"

namespace tessera::internal {

LossScaler::LossScaler(LossScale schedule)
    : schedule_(schedule), state_{.scale = schedule.initial, .good_steps = 0} {
  TORCH_CHECK(is_fp32_factor(schedule.initial), "[optim] loss_scale.initial: got ",
              schedule.initial, ", expected a normal number of fp32 above 0; 65536 suits fp16");
  TORCH_CHECK(std::isfinite(schedule.growth) && schedule.growth >= 1.0,
              "[optim] loss_scale.growth: got ", schedule.growth,
              ", expected a finite number of at least 1; 1 never grows");
  TORCH_CHECK(schedule.backoff > 0.0 && schedule.backoff <= 1.0, "[optim] loss_scale.backoff: got ",
              schedule.backoff, ", expected a number above 0 and at most 1; 1 never shrinks");
  TORCH_CHECK(schedule.growth_interval >= 1, "[optim] loss_scale.growth_interval: got ",
              schedule.growth_interval, ", expected at least 1 step");
}

void LossScaler::update(bool overflowed) {
  state_ = next_loss_scale(state_,
                           {.growth = schedule_.growth,
                            .backoff = schedule_.backoff,
                            .growth_interval = schedule_.growth_interval},
                           overflowed);
}

void LossScaler::load(double scale, int64_t good_steps) {
  TORCH_CHECK(is_fp32_factor(scale), "[optim] loss scale: got ", scale,
              ", expected a normal number of fp32 above 0; load the scaler's state of a run of "
              "this library");
  TORCH_CHECK(good_steps >= 0, "[optim] loss scale: got ", good_steps,
              " good steps, expected at least 0; load the scaler's state of a run of this library");
  state_ = {.scale = scale, .good_steps = good_steps};
}

}  // namespace tessera::internal
