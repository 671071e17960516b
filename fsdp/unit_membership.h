#pragma once

#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"
#include "tessera/wrap_policy.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::internal {

/// Forms the units of a model whose parameters are split, and returns the parameters of each. Every
/// parameter of `table` is in exactly one unit; `table` may leave out some of the model's
/// parameters.
///
/// `policy` (wrap_blocks() if it is empty) chooses modules. A parameter belongs to the unit of the
/// innermost chosen module that contains it. A parameter with several names (tied, or in a module
/// registered twice) belongs to the innermost unit that contains it under all of them. Parameters
/// in no chosen module form the root unit, called "root". A unit with several dtypes is split into
/// one unit per dtype ("layers.0 (Double)"), and parameters that keep their dtype get a unit of
/// their own ("layers.0 (BatchNorm)"). A unit with frozen and trainable parameters is split into
/// one of each ("layers.0 (frozen)"). Units without parameters are left out.
///
/// Units are in the order in which backward probably finishes them: the unit whose first parameter
/// is last in the table comes first, and so on; then root units, then frozen units. Within a unit
/// parameters keep the table's order. Nothing depends on the rank or the world.
///
/// Local. Throws c10::Error if `policy` chooses a name that the model does not have, a module twice
/// or a module that owns no parameters, or gives an empty list. The text lists all these errors and
/// the names that can be chosen.
std::vector<UnitPlan::Membership> unit_membership(const torch::nn::Module& model,
                                                  const ParameterTable& table,
                                                  const WrapPolicy& policy);

}  // namespace tessera::internal
