#include "tessera/core/step/parameter_hash.h"

#include <gtest/gtest.h>

#include <cmath>

#include <ATen/ATen.h>

namespace tessera::internal {
namespace {

uint64_t hash(std::vector<NamedTensor> tensors) {
  std::vector<uint64_t> hashes;
  for (const Parameter& parameter : ParameterTable(std::move(tensors))) {
    hashes.push_back(hash_parameter(parameter));
  }
  return combine_hashes(hashes);
}

TEST(ParameterHash, DoesNotDependOnStrides) {
  const at::Tensor kernel = at::arange(24, at::kFloat).reshape({2, 3, 2, 2});
  EXPECT_EQ(hash({{"kernel", kernel.clone()}}),
            hash({{"kernel", kernel.contiguous(at::MemoryFormat::ChannelsLast)}}));
  const at::Tensor matrix = at::arange(6, at::kFloat).reshape({2, 3});
  EXPECT_EQ(hash({{"matrix", matrix.clone()}}), hash({{"matrix", matrix.t().contiguous().t()}}));
}

TEST(ParameterHash, SeesValuesShapesDtypesNamesAndOrder) {
  const uint64_t reference = hash({{"a", at::zeros({2, 3})}, {"b", at::ones({3})}});
  EXPECT_EQ(hash({{"a", at::zeros({2, 3})}, {"b", at::ones({3})}}), reference);
  at::Tensor other = at::ones({3});
  other[2] = std::nextafter(1.0F, 2.0F);
  EXPECT_NE(hash({{"a", at::zeros({2, 3})}, {"b", other}}), reference);
  EXPECT_NE(hash({{"a", at::zeros({3, 2})}, {"b", at::ones({3})}}), reference);
  EXPECT_NE(hash({{"a", at::zeros({2, 3}, at::kDouble)}, {"b", at::ones({3})}}), reference);
  EXPECT_NE(hash({{"x", at::zeros({2, 3})}, {"b", at::ones({3})}}), reference);
  EXPECT_NE(hash({{"b", at::ones({3})}, {"a", at::zeros({2, 3})}}), reference);
  EXPECT_NE(hash({{"a", -at::zeros({2, 3})}, {"b", at::ones({3})}}), reference);
}

TEST(ParameterHash, TakesScalarsAndEmptyTensors) {
  const uint64_t reference = hash({{"scalar", at::ones({})}, {"empty", at::zeros({0, 3})}});
  EXPECT_NE(hash({{"scalar", at::ones({})}, {"empty", at::zeros({3, 0})}}), reference);
  EXPECT_NE(hash({{"scalar", at::ones({1})}, {"empty", at::zeros({0, 3})}}), reference);
}

}  // namespace
}  // namespace tessera::internal
