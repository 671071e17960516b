#include "tessera/parameter_table.h"

#include <string>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/layout/parameter.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::parameter;

std::string table_refusal(std::vector<NamedTensor> registered) {
  try {
    const ParameterTable table(std::move(registered));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(ParameterTable, KeepsRegistrationOrderAndTheUsersTensors) {
  const at::Tensor weight = parameter({3, 2});
  const at::Tensor bias = at::zeros({3});
  const ParameterTable table({{"fc.weight", weight}, {"unset", {}}, {"fc.bias", bias}});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].name, "fc.weight");
  EXPECT_TRUE(table[0].tensor.is_same(weight));
  EXPECT_TRUE(table[0].is_trainable);
  EXPECT_TRUE(table[0].other_names.empty());
  EXPECT_EQ(table[1].name, "fc.bias");
  EXPECT_FALSE(table[1].is_trainable);
  EXPECT_EQ(std::distance(table.begin(), table.end()), 2);
}

TEST(ParameterTable, OneTensorUnderSeveralNamesIsOneParameter) {
  const at::Tensor embedding = parameter({8, 4});
  const at::Tensor other = parameter({2});
  const ParameterTable table({{"embed.weight", embedding},
                              {"fc.bias", other},
                              {"head.weight", embedding},
                              {"alias", embedding}});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].name, "embed.weight");
  EXPECT_THAT(table[0].other_names, ::testing::ElementsAre("head.weight", "alias"));
  EXPECT_TRUE(table[1].other_names.empty());
}

TEST(ParameterTable, EmptyModelsEmptyTensorsAndScalarsAreParameters) {
  EXPECT_EQ(ParameterTable({}).size(), 0u);
  const ParameterTable table({{"empty", parameter({0, 5})}, {"scalar", parameter({})}});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].tensor.numel(), 0);
  EXPECT_EQ(table[1].tensor.numel(), 1);
}

TEST(ParameterTable, AcceptsEveryFloatingDtype) {
  const ParameterTable table({{"f", parameter({2}, c10::kFloat)},
                              {"d", parameter({2}, c10::kDouble)},
                              {"b", parameter({2}, c10::kBFloat16)},
                              {"h", parameter({2}, c10::kHalf)}});
  EXPECT_EQ(table.size(), 4u);
}

TEST(ParameterTable, LinesTellApartWhatRanksMustAgreeOn) {
  const at::Tensor tied = parameter({2, 3});
  const at::Tensor conv =
      at::zeros({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const ParameterTable table(
      {{"a", tied}, {"conv", conv}, {"b", tied}, {"frozen", at::zeros({2})}});
  EXPECT_THAT(table.lines(),
              ::testing::ElementsAre(
                  "parameter 0 'a' = 'b': Float shape [2, 3] strides [3, 1] trainable",
                  "parameter 1 'conv': Float shape [4, 3, 2, 2] strides [12, 1, 6, 3] trainable",
                  "parameter 2 'frozen': Float shape [2] strides [1] frozen"));
  // Each single difference is visible.
  const auto line = [](const at::Tensor& tensor) {
    return ParameterTable({{"w", tensor}}).lines().front();
  };
  const std::string base = line(parameter({2, 3}));
  EXPECT_EQ(base, line(parameter({2, 3})));
  EXPECT_NE(base, line(parameter({3, 2})));
  EXPECT_NE(base, line(parameter({2, 3}, c10::kDouble)));
  EXPECT_NE(base, line(at::zeros({2, 3})));
  EXPECT_NE(base, line(at::zeros({3, 2}).t().requires_grad_()));
}

TEST(ParameterTable, MixedDevicesAreRefusedByName) {
  const at::Tensor meta = at::zeros({2}, at::device(c10::kMeta)).requires_grad_();
  EXPECT_THAT(table_refusal({{"on_cpu", parameter({2})}, {"on_meta", meta}}),
              AllOf(HasSubstr("[layout] devices: got parameters on cpu ('on_cpu'), meta "
                              "('on_meta'), expected one device per engine"),
                    HasSubstr("parameter 'on_meta': got device meta, expected cpu"),
                    Not(HasSubstr("parameter 'on_cpu'"))));
}

TEST(ParameterTable, OneForeignDeviceIsRefusedByName) {
  const at::Tensor meta = at::zeros({2}, at::device(c10::kMeta)).requires_grad_();
  EXPECT_THAT(table_refusal({{"w", meta}}),
              AllOf(HasSubstr("parameter 'w': got device meta, expected cpu"),
                    Not(HasSubstr("one device per engine"))));
}

TEST(ParameterTable, SparseIntegerComplexAndQuantizedAreRefusedByName) {
  const at::Tensor sparse = at::eye(3).to_sparse();
  const at::Tensor complex = at::zeros({2}, at::dtype(c10::kComplexFloat));
  const at::Tensor quantized = at::quantize_per_tensor(at::zeros({2}), 0.1, 0, c10::kQInt8);
  const std::string message = table_refusal({{"sparse", sparse},
                                             {"fine", parameter({2})},
                                             {"long", at::zeros({2}, at::dtype(c10::kLong))},
                                             {"bool", at::zeros({2}, at::dtype(c10::kBool))},
                                             {"complex", complex},
                                             {"quantized", quantized}});
  EXPECT_THAT(message, AllOf(HasSubstr("'sparse': got layout Sparse, expected Strided"),
                             HasSubstr("'long': got dtype Long, expected Float, Double"),
                             HasSubstr("'bool': got dtype Bool"),
                             HasSubstr("'complex': got dtype ComplexFloat"),
                             HasSubstr("'quantized': got dtype QInt8"), Not(HasSubstr("'fine'"))));
}

TEST(ParameterTable, NonLeafAndInferenceTensorsAreRefusedByName) {
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = at::zeros({2});
  }
  EXPECT_THAT(table_refusal({{"sum", parameter({2}) + 1}, {"inferred", inference}}),
              AllOf(HasSubstr("'sum': got the result of an operation, expected a leaf"),
                    HasSubstr("'inferred': got a tensor made in inference mode")));
}

TEST(ParameterTable, OverlappingMemoryIsRefusedWithBothNames) {
  const at::Tensor base = at::zeros({10});
  const at::Tensor head = base.narrow(0, 0, 6).detach().requires_grad_();
  const at::Tensor tail = base.narrow(0, 5, 5).detach().requires_grad_();
  EXPECT_THAT(
      table_refusal({{"tail", tail}, {"fine", parameter({2})}, {"head", head}}),
      AllOf(HasSubstr("parameters 'tail' and 'head': got two tensors in overlapping memory"),
            HasSubstr("register one tensor under both names"), Not(HasSubstr("'fine'"))));
  // A tie made by aliasing: two tensors over the same memory, even through another storage.
  const at::Tensor weight = parameter({4});
  const at::Tensor alias = weight.detach().requires_grad_();
  EXPECT_THAT(table_refusal({{"a", weight}, {"b", alias}}), HasSubstr("parameters 'a' and 'b'"));
  const at::Tensor blob = at::from_blob(weight.data_ptr(), {4});
  EXPECT_THAT(table_refusal({{"a", weight}, {"blob", blob}}),
              HasSubstr("parameters 'a' and 'blob'"));
}

TEST(ParameterTable, NeighboursInOneStorageAreFine) {
  const at::Tensor base = at::zeros({12});
  const at::Tensor head = base.narrow(0, 0, 6).detach().requires_grad_();
  const at::Tensor tail = base.narrow(0, 6, 6).detach().requires_grad_();
  const at::Tensor empty = base.narrow(0, 3, 0).detach().requires_grad_();
  EXPECT_EQ(ParameterTable({{"head", head}, {"tail", tail}, {"empty", empty}}).size(), 3u);
}

TEST(ParameterTable, AWideTensorHidesNoLaterOverlap) {
  // 'wide' ends after 'inner': 'late' overlaps 'wide' but not its neighbour in the order of
  // addresses.
  const at::Tensor base = at::zeros({20});
  EXPECT_THAT(table_refusal({{"wide", base.narrow(0, 0, 15).detach()},
                             {"inner", base.narrow(0, 2, 2).detach()},
                             {"late", base.narrow(0, 10, 8).detach()}}),
              AllOf(HasSubstr("'wide' and 'inner'"), HasSubstr("'wide' and 'late'"),
                    Not(HasSubstr("'inner' and 'late'"))));
}

TEST(ParameterTableNegativeControl, TheChecksFindNothingInAGoodModel) {
  EXPECT_EQ(table_refusal({{"a", parameter({2})}, {"b", parameter({2})}}), "nothing was thrown");
}

}  // namespace
}  // namespace tessera::internal
