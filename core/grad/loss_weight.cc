#include "tessera/core/grad/loss_weight.h"

#include <utility>

namespace tessera::internal {
namespace {

thread_local double present_weight = 1.0;

}  // namespace

LossWeight::LossWeight(double weight) : outer_(std::exchange(present_weight, weight)) {}

LossWeight::~LossWeight() { present_weight = outer_; }

double LossWeight::of_backward() { return present_weight; }

}  // namespace tessera::internal
