#pragma once

#include <string>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/options.h"
#include "tessera/core/strategy.h"
#include "tessera/zero/parameter_store.h"

namespace tessera {

/// The table behind the strategies: over how many of `world_size` ranks each one splits parameters,
/// gradients and optimizer state. The only switch on Strategy. Throws c10::Error unless the degrees
/// of a hybrid fit the world.
Degrees placement(const Options& options, int world_size);

/// Whether the strategy splits parameters, were the world large enough: then options about units
/// have a meaning.
bool splits_parameters(const Options& options);

/// Options::reshard_after_forward with what was unset filled in. Throws c10::Error unless it fits
/// the degrees.
int ranks_after_forward(const Options& options, const Degrees& degrees);

/// How parameters are kept; without what the engine itself knows (is_inside_backward, prefetch).
ParameterStore::Setting store_setting(const Options& options, const Degrees& degrees,
                                      int ranks_after_forward);

/// Names the first option that is set and that the strategy ignores, "<option>: got ...; ..."; ""
/// if there is none.
std::string ignored_option(const Options& options);

/// What forbids Options::reshard_after_forward in `world`, whose ranks may be unable to read each
/// other's memory; "" if nothing does.
std::string problem_of_second_shards(const Options& options, const Degrees& degrees,
                                     const ProcessGroup& world);

/// What forbids Options::optimizer_in_backward under `degrees`, which placement() returned for
/// `world_size`; "" if nothing does or it is off.
std::string problem_of_early_update(const Options& options, const Degrees& degrees, int world_size);

/// What forbids `options` where parameters lie at `place`, one line each; empty if nothing.
std::vector<std::string> problems_of_place(const Options& options, const Degrees& degrees,
                                           at::Device place, int world_size);

/// Options::late_verdict, resolved: whether step() returns before its outcome is known.
bool has_late_verdict(const Options& options, const Degrees& degrees, at::Device place);

}  // namespace tessera
