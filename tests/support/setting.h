#pragma once

#include <string>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// A configuration and a world size, which are the parameter of test suites over strategies.
struct Setting {
  Configuration configuration;
  int size;
  ProcessGroupOptions::Lane lane = ProcessGroupOptions::Lane::kInline;

  bool has_whole_gradients() const { return configuration.degrees_at(size).optimizer == 1; }
  /// Whether there are times when parameters are not whole.
  bool splits_parameters() const {
    return configuration.splits_parameters() && (size > 1 || configuration.free_eagerly);
  }
  bool has_whole_parameters() const { return !splits_parameters(); }
};

/// Selects the settings under which a test makes sense.
using Suits = bool (Setting::*)() const;

inline std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  return absl::StrCat(info.param.configuration.name, "_", info.param.size,
                      info.param.lane == ProcessGroupOptions::Lane::kThread ? "_lane_thread" : "");
}

}  // namespace tessera::internal::testing
