#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/support/row.h"

namespace tessera::testing {

/// A row and the number of ranks that it trains on.
using RowSize = std::pair<Row, int>;

/// The named rows, those apart and zero3 kept whole, on two and on three ranks.
inline std::vector<RowSize> usual_row_sizes() {
  std::vector<RowSize> all;
  for (const int size : {2, 3}) {
    for (const Row& row : named_and_apart_rows()) all.emplace_back(row, size);
    all.emplace_back(resharding(1), size);
  }
  return all;
}

inline std::string name_of_row_size(const ::testing::TestParamInfo<RowSize>& info) {
  return info.param.first.name + "_World" + std::to_string(info.param.second);
}

}  // namespace tessera::testing
