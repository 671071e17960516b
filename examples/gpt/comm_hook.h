#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <absl/strings/string_view.h>

#include "tessera/comm_hook.h"

namespace gpt {

/// Names of the communication hooks.
enum class CommHookName : uint8_t { kNone, kAllReduce, kNoop, kPowerSgd };

// For ABSL_FLAG.
bool AbslParseFlag(absl::string_view text, CommHookName* name, std::string* error);
std::string AbslUnparseFlag(CommHookName name);

/// Returns the hook; null for kNone. `rank` and `start` are PowerSGD's matrix_approximation_rank
/// and start_power_sgd_iter; other hooks ignore them.
std::shared_ptr<tessera::CommHook> make_comm_hook(CommHookName name, int64_t rank, int64_t start);

}  // namespace gpt
