#pragma once

#include <chrono>
#include <string>

#include <absl/strings/string_view.h>

#include "tessera/rendezvous.h"

namespace program {

/// A command-line time-out of ranks: whole seconds above 0, or "none".
struct TimeOutFlag {
  std::chrono::milliseconds timeout = tessera::ProcessGroupOptions().timeout;
};

/// For ABSL_FLAG's help.
inline constexpr const char* kTimeOutHelp =
    "seconds that a rank waits for the others, at start and in every collective, before it fails "
    "and names who is missing: a whole number from 1, or none";

bool AbslParseFlag(absl::string_view text, TimeOutFlag* flag, std::string* error);
std::string AbslUnparseFlag(const TimeOutFlag& flag);

}  // namespace program
