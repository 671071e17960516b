#include "tessera/core/layout/flat_buffer.h"

#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::HasSubstr;

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

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

TEST(FlatBuffer, MoveIntoKeepsValuesStridesTheTensorObjectAndItsVersion) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    at::Tensor parameter = shape.tensor.detach();
    if (shape.is_dense) parameter.add_(1);  // a version that is not zero
    parameter.requires_grad_();
    const at::Tensor before = parameter.detach().clone();
    const std::vector<int64_t> strides = flat_strides(parameter);
    const auto version = parameter._version();
    const c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();

    const at::Tensor flat = at::full({256}, -5.0f);
    const Range range{128, parameter.numel()};
    EXPECT_FALSE(lives_in(flat, range, parameter));
    move_into(flat, range, parameter);

    EXPECT_TRUE(lives_in(flat, range, parameter));
    EXPECT_EQ(parameter.unsafeGetTensorImpl(), impl);
    EXPECT_EQ(parameter._version(), version);
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(parameter.strides(), at::IntArrayRef(strides));
    EXPECT_TRUE(at::equal(parameter, before));
    EXPECT_TRUE(flat.narrow(0, 0, 128).eq(-5).all().item<bool>());
    EXPECT_TRUE(flat.slice(0, range.end()).eq(-5).all().item<bool>());

    // Both see one memory; writing the buffer is no in-place operation on the parameter.
    flat.narrow(0, range.begin, range.numel).fill_(3);
    EXPECT_TRUE(parameter.eq(3).all().item<bool>());
    EXPECT_EQ(parameter._version(), version);
  }
}

TEST(FlatBuffer, AutogradAndItsHooksSurviveTheMove) {
  at::Tensor parameter = at::ones({3, 2}).requires_grad_();
  int calls = 0;
  parameter.register_hook([&calls](const at::Tensor&) { ++calls; });
  const at::Tensor flat = at::zeros({64});
  move_into(flat, {0, 6}, parameter);
  (parameter * 2).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(parameter.grad().eq(2).all().item<bool>());
  EXPECT_TRUE(parameter.grad().sizes() == parameter.sizes());
}

TEST(FlatBuffer, ViewsOfAFlatBufferThatIsItselfAViewCountFromItsStart) {
  const at::Tensor arena = at::arange(512, at::kFloat);
  const at::Tensor flat = arena.narrow(0, 256, 128);
  const at::Tensor view = view_like(flat, {64, 6}, at::zeros({2, 3}));
  EXPECT_EQ(view[0][0].item<float>(), 320.0f);
  EXPECT_TRUE(lives_in(flat, {64, 6}, view));
  EXPECT_FALSE(lives_in(flat, {0, 6}, view));
  EXPECT_FALSE(lives_in(flat.clone(), {64, 6}, view));
}

TEST(FlatBuffer, MoveOutGivesMemoryOfItsOwnWithTheSameValues) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    at::Tensor parameter = shape.tensor.detach().requires_grad_();
    const at::Tensor before = parameter.detach().clone();
    const at::Tensor flat = at::zeros({256});
    const Range range{64, parameter.numel()};
    move_into(flat, range, parameter);
    const std::vector<int64_t> strides = parameter.strides().vec();
    move_out(parameter);
    EXPECT_FALSE(lives_in(flat, range, parameter));
    EXPECT_TRUE(parameter.requires_grad() && parameter.is_leaf());
    EXPECT_EQ(parameter.strides(), at::IntArrayRef(strides));
    flat.fill_(9);
    EXPECT_TRUE(at::equal(parameter, before));
  }
}

TEST(FlatBufferNegativeControl, EveryWayOutOfTheBufferIsNoticed) {
  const at::Tensor flat = at::zeros({256});
  const Range range{64, 6};
  const auto moved = [&] {
    at::Tensor parameter = at::ones({2, 3}).requires_grad_();
    move_into(flat, range, parameter);
    EXPECT_TRUE(lives_in(flat, range, parameter));
    return parameter;
  };
  at::Tensor replaced = moved();
  replaced.set_data(replaced.detach().clone());
  EXPECT_FALSE(lives_in(flat, range, replaced)) << "re-assigned";
  at::Tensor cast = moved();
  cast.set_data(cast.detach().to(at::kDouble));
  EXPECT_FALSE(lives_in(flat, range, cast)) << "another dtype";
  at::Tensor narrowed = moved();
  narrowed.set_data(narrowed.detach().narrow(0, 0, 1));
  EXPECT_FALSE(lives_in(flat, range, narrowed)) << "a part of itself";
  at::Tensor shifted = moved();
  shifted.set_data(flat.narrow(0, 65, 6).view({2, 3}));
  EXPECT_FALSE(lives_in(flat, range, shifted)) << "elsewhere in the buffer";
  at::Tensor expanded = moved();
  expanded.set_data(flat.narrow(0, 64, 1).expand({2, 3}));
  EXPECT_FALSE(lives_in(flat, range, expanded)) << "one element six times";
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
  EXPECT_THAT(message_of([&] {
                move_into(flat, {0, 6}, parameter.to(at::kDouble));
              }),
              HasSubstr("[layout] parameter dtype: got Double, expected Float"));
}

}  // namespace
}  // namespace tessera
