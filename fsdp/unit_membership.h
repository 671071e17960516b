#pragma once

#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"
#include "tessera/wrap_policy.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera::internal {

/// Returns which parameters form which unit where parameters are split: every parameter of `table`,
/// which may leave out some of the model's, occurs in one unit.
///
/// A parameter belongs to the innermost module around it that `policy` (if empty: wrap_blocks())
/// chose. One with several names (tied, or of a module registered twice) belongs to the innermost
/// unit around all of them. Parameters that no unit has form the root unit, called "root". A unit
/// of several dtypes becomes one per dtype ("layers.0 (Double)"), one with frozen parameters a
/// trainable and a frozen one ("layers.0 (frozen)"). Units without parameters are left out.
///
/// Order: the order in which backward probably finishes them, i.e. by the first parameter's place
/// in the table, last one first; then root units, then frozen ones. Within a unit parameters keep
/// the table's order. Nothing depends on the rank or the world.
///
/// Local. Throws c10::Error that lists every chosen name that the model does not have, that occurs
/// twice or that owns no parameters, every empty list, and the names there are.
std::vector<UnitPlan::Membership> unit_membership(const torch::nn::Module& model,
                                                  const ParameterTable& table,
                                                  const WrapPolicy& policy);

}  // namespace tessera::internal
