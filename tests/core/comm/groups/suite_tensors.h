#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"

namespace tessera::internal::testing {

inline constexpr at::ScalarType kAllDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                                at::kLong,  at::kInt,    at::kShort,    at::kChar,
                                                at::kByte,  at::kBool};

inline std::vector<int64_t> sizes_of(const GroupBackend& backend) {
  return {0, 1, 7, backend.largest};
}

/// 1 to 3, so that products of four are exact in every dtype; for bool 0 or 1.
inline int64_t value_at(int rank, int64_t i, at::ScalarType dtype) {
  if (dtype == at::kBool) return (i + rank) % 3 == 0 ? 1 : 0;
  return (i * 2 + rank * rank) % 3 + 1;
}

inline at::Tensor filled(int64_t numel, at::ScalarType dtype,
                         const std::function<double(int64_t)>& of) {
  const at::Tensor made = at::empty({numel}, at::kDouble);
  auto* const values = made.mutable_data_ptr<double>();
  // Values repeat every 6 elements, so the rest is copied from the first ones.
  for (int64_t i = 0; i < numel; ++i) values[i] = i < 6 ? of(i) : values[i - 6];
  return made.to(dtype);
}

/// Element i of the data that rank `from` gives `to`, different from that of every other pair with
/// one of the two. For bool: its bits.
inline double value_of_pair(int from, int to, int size, int64_t i, at::ScalarType dtype) {
  const int64_t pair = from * size + to;
  if (dtype == at::kBool) return static_cast<double>((pair + 1) >> i & 1);
  return static_cast<double>(i + 6 * (pair % 20));
}

inline at::Tensor input_of(int rank, int64_t numel, at::ScalarType dtype) {
  return filled(numel, dtype,
                [&](int64_t i) { return static_cast<double>(value_at(rank, i, dtype)); });
}

/// Copies `values`; on even ranks into memory from the group, so that ranks mix both kinds.
inline at::Tensor placed(ProcessGroup& group, const at::Tensor& values) {
  if (group.rank() % 2 != 0) return values.to(group.device()).clone();
  at::Tensor made = group.allocate(values.numel(), values.scalar_type());
  made.copy_(values);
  return made;
}

inline at::Tensor on_device(ProcessGroup& group, const at::Tensor& values) {
  return values.to(group.device());
}

inline void expect_equal(const at::Tensor& got, const at::Tensor& expected,
                         const std::string& what) {
  EXPECT_TRUE(at::equal(got.cpu(), expected)) << what;
}

inline void for_each_world(const GroupBackend& backend,
                           const std::function<void(ProcessGroup&)>& body) {
  for (const int size : backend.world_sizes) {
    SCOPED_TRACE(absl::StrCat(backend.name, " of ", size));
    backend.run(size, [&](std::shared_ptr<ProcessGroup> group) { body(*group); });
  }
}

}  // namespace tessera::internal::testing
