#include "tessera/core/grad/loss_weight_scope.h"

#include <utility>

namespace tessera::internal {
namespace {

thread_local double present_weight = 1.0;

}  // namespace

LossWeightScope::LossWeightScope(double weight) : outer_(std::exchange(present_weight, weight)) {}

LossWeightScope::~LossWeightScope() { present_weight = outer_; }

double LossWeightScope::of_backward() { return present_weight; }

}  // namespace tessera::internal
