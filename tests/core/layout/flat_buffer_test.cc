#include "tessera/core/layout/flat_buffer.h"
#include "tessera/tests/support/message_of.h"

#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

struct Shape {
  std::string name;
  at::Tensor tensor;
  bool is_dense;
};

std::vector<Shape> shapes() {
  return {
      {"matrix", at::randn({5, 3}), true},
      {"vector", at::randn({7}), true},
      {"scalar", at::randn({}), true},
      {"empty", at::randn({0, 4}), true},
      {"transposed", at::randn({5, 3}).t(), true},
      {"permuted", at::randn({2, 3, 4}).permute({2, 0, 1}), true},
      {"channels_last", at::randn({4, 3, 2, 5}).contiguous(at::MemoryFormat::ChannelsLast), true},
      {"channels_last_1x1", at::randn({4, 3, 1, 1}).contiguous(at::MemoryFormat::ChannelsLast),
       true},
      {"one of a size-1 dimension", at::randn({3, 5}).narrow(1, 0, 1).squeeze(1).unsqueeze(0),
       false},
      {"column slice", at::randn({6, 5}).narrow(1, 1, 3), false},
      {"stepped", at::randn({10}).slice(0, 0, 10, 2), false},
      {"expanded", at::randn({1, 4}).expand({3, 4}), false},
  };
}

TEST(FlatBuffer, DenseTensorsKeepTheirStridesOthersBecomeContiguous) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(is_non_overlapping_dense(shape.tensor), shape.is_dense);
    const at::Tensor expected = shape.is_dense ? shape.tensor : shape.tensor.contiguous();
    EXPECT_EQ(at::IntArrayRef(flat_strides(shape.tensor)), expected.strides());
  }
}

TEST(FlatBuffer, ViewsOfAFlatBufferThatIsItselfAViewCountFromItsStart) {
  const at::Tensor arena = at::arange(512, at::kFloat);
  const at::Tensor flat = arena.narrow(0, 256, 128);
  const at::Tensor view = view_like(flat, {64, 6}, at::zeros({2, 3}));
  EXPECT_EQ(view[0][0].item<float>(), 320.0f);
}

TEST(FlatBuffer, ATensorFillsItsStorageIfItLeavesNothingOut) {
  EXPECT_TRUE(fills_storage(at::zeros({2, 3})));
  EXPECT_TRUE(fills_storage(at::zeros({2, 3}).t()));
  EXPECT_TRUE(fills_storage(at::zeros({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast)));
  EXPECT_TRUE(fills_storage(at::zeros({})));
  EXPECT_TRUE(fills_storage(at::zeros({0, 4})));
  EXPECT_FALSE(fills_storage(at::zeros({4, 3}).narrow(0, 0, 2))) << "the first part";
  EXPECT_FALSE(fills_storage(at::zeros({4, 3}).narrow(0, 2, 2))) << "the last part";
  EXPECT_FALSE(fills_storage(at::zeros({4, 4}).narrow(1, 0, 2))) << "with gaps";
  EXPECT_FALSE(fills_storage(at::zeros({1}).expand({4}))) << "one element four times";
}

TEST(FlatBuffer, ATensorWithoutMemoryHasTheShapeAndAStorageOfItsSize) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const at::Tensor tensor = without_memory(shape.tensor, at::kDouble);
    EXPECT_EQ(tensor.sizes(), shape.tensor.sizes());
    EXPECT_EQ(tensor.strides(), at::IntArrayRef(flat_strides(shape.tensor)));
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_TRUE(fills_storage(tensor));
  }
}

TEST(FlatBuffer, WrongArgumentsAreRefused) {
  const at::Tensor flat = at::zeros({64});
  const at::Tensor parameter = at::zeros({2, 3});
  EXPECT_THAT(message_of([&] {
                view_like(flat, {60, 6}, parameter);
              }),
              HasSubstr("[layout] range: got 60 to 66, expected a part of 0 to 64"));
  EXPECT_THAT(message_of([&] {
                view_like(flat, {0, 7}, parameter);
              }),
              HasSubstr("[layout] range: got 7 elements, expected 6"));
  EXPECT_THAT(message_of([&] {
                view_like(at::zeros({8, 8}), {0, 6}, parameter);
              }),
              HasSubstr("[layout] flat buffer: got 2 dimensions"));
}

}  // namespace
}  // namespace tessera::internal
