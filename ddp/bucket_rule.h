#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Which parameters share a bucket: runs of the trainable parameters in reversed registration
/// order, which is roughly the order in which backward finishes their gradients. A bucket is closed
/// by the parameter that brings it to its size: bucket i to caps[i] bytes, those behind the end of
/// `caps`, which is not empty, to its last; dtypes never mix. Depends on nothing but its arguments,
/// so all ranks agree. Source: PyTorch DDP, arXiv 2006.15704, section 3.2.3.
std::vector<UnitPlan::Membership> bucket_membership(const ParameterTable& table,
                                                    std::span<const int64_t> caps);

}  // namespace tessera::internal
