#pragma once

#include "tessera/core/options/option_table.h"

namespace tessera::internal {

// Each function refuses the invalid values of one field of Options. What depends on the model or
// the world is checked only if these are known. The rows of the option table name these functions,
// and check the ranges of single numbers themselves. All functions refuse NaN.

void check_asynchronous_step(const OptionCase& known, const RefuseOption& refuse);
void check_average(const OptionCase& known, const RefuseOption& refuse);
void check_bucket_bytes(const OptionCase& known, const RefuseOption& refuse);
void check_cuda_graphs(const OptionCase& known, const RefuseOption& refuse);
void check_degrees(const OptionCase& known, const RefuseOption& refuse);
void check_divide_factor(const OptionCase& known, const RefuseOption& refuse);
void check_group_norms(const OptionCase& known, const RefuseOption& refuse);
void check_ignores(const OptionCase& known, const RefuseOption& refuse);
void check_loss_scale(const OptionCase& known, const RefuseOption& refuse);
void check_offload(const OptionCase& known, const RefuseOption& refuse);
void check_precision(const OptionCase& known, const RefuseOption& refuse);
void check_reproducible(const OptionCase& known, const RefuseOption& refuse);
void check_reshard(const OptionCase& known, const RefuseOption& refuse);
void check_wrap(const OptionCase& known, const RefuseOption& refuse);

inline constexpr const char* kNoClipping = "leave it out to train without clipping";

/// Returns true if Options::asynchronous_step is true.
bool is_asynchronous(const Options& options);

}  // namespace tessera::internal
