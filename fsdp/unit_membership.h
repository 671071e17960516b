#pragma once

#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"
#include "tessera/wrap_policy.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::internal {

/// Returns the parameters of each unit where parameters are split. Every parameter of `table` is in
/// one unit; `table` may leave out some of the model's parameters.
///
/// A parameter belongs to the innermost module around it that `policy` (if empty: wrap_blocks())
/// chose. A parameter with several names (tied, or in a module registered twice) belongs to the
/// innermost unit around all of them. Parameters in no chosen module form the root unit, called
/// "root". A unit with several dtypes is split into one unit per dtype ("layers.0 (Double)"), a
/// unit with frozen parameters into a trainable and a frozen one ("layers.0 (frozen)"). Units
/// without parameters are left out.
///
/// Units are in the order in which backward probably finishes them: by the place of their first
/// parameter in the table, the last one first; then root units, then frozen units. Within a unit
/// parameters keep the table's order. Nothing depends on the rank or the world.
///
/// Local. Throws c10::Error that lists every chosen name that the model does not have, that occurs
/// twice or that owns no parameters, every empty list, and the names that can be chosen.
std::vector<UnitPlan::Membership> unit_membership(const torch::nn::Module& model,
                                                  const ParameterTable& table,
                                                  const WrapPolicy& policy);

}  // namespace tessera::internal
