#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Returns which parameters share a bucket: runs of the trainable parameters in reversed
/// registration order, which is roughly the order in which backward finishes their gradients. The
/// parameter that brings bucket i to caps[i] bytes closes it; buckets beyond the end of `caps`,
/// which is not empty, use its last element. Dtypes never mix. Depends only on the arguments, so
/// all ranks agree. Source: PyTorch DDP, arXiv 2006.15704, section 3.2.3.
std::vector<UnitPlan::Membership> bucket_membership(const ParameterTable& table,
                                                    std::span<const int64_t> caps);

}  // namespace tessera::internal
