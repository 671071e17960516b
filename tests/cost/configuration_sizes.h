#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// A configuration and the number of ranks that it trains on.
using ConfigurationSize = std::pair<Configuration, int>;

/// The named configurations, those apart and zero3 kept whole, on two and on three ranks.
inline std::vector<ConfigurationSize> usual_configuration_sizes() {
  std::vector<ConfigurationSize> all;
  for (const int size : {2, 3}) {
    for (const Configuration& configuration : named_and_apart_configurations())
      all.emplace_back(configuration, size);
    all.emplace_back(resharding(1), size);
  }
  return all;
}

inline std::string name_of_configuration_size(
    const ::testing::TestParamInfo<ConfigurationSize>& info) {
  return info.param.first.name + "_World" + std::to_string(info.param.second);
}

}  // namespace tessera::internal::testing
