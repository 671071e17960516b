#pragma once

#include <cstdint>
#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Which parameters share a bucket: runs of the trainable parameters in reversed registration
/// order, which is roughly the order in which backward finishes their gradients. A bucket is closed
/// by the parameter that brings it to its size, first_bucket_bytes for the first and bucket_bytes
/// for the others; dtypes never mix. Depends on nothing but its arguments, so all ranks agree.
/// Source: PyTorch DDP, arXiv 2006.15704, section 3.2.3.
std::vector<UnitPlan::Membership> bucket_membership(const ParameterTable& table,
                                                    int64_t first_bucket_bytes,
                                                    int64_t bucket_bytes);

}  // namespace tessera::internal
