#include "tessera/core/layout/freeable_buffer.h"

#include <atomic>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

/// A buffer under two tensors, the second of which has a view.
struct TwoTensors {
  TwoTensors() {
    buffer.adopt(first.storage(), 0);
    buffer.adopt(second.storage(), 64);
  }

  at::Tensor first = at::full({4}, 7.0f);
  at::Tensor second = at::full({2, 3}, 8.0f);
  at::Tensor view = second.t()[1];
  FreeableBuffer buffer{128, at::kFloat, at::kCPU, "is free"};
};

std::string refusal(const at::Tensor& tensor) {
  try {
    tensor.const_data_ptr();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// The error of all three, which must be the same.
std::string refusal(const TwoTensors& tensors) {
  const std::string of_first = refusal(tensors.first);
  EXPECT_EQ(refusal(tensors.second), of_first);
  EXPECT_EQ(refusal(tensors.view), of_first);
  return of_first;
}

TEST(FreeableBuffer, TensorsAndTheirViewsFollowTheMemory) {
  TwoTensors tensors;
  for (const double start : {0.0, 1000.0}) {
    tensors.buffer.attach(at::arange(start, start + 128, at::kFloat));
    EXPECT_EQ(tensors.first[3].item<double>(), start + 3);
    EXPECT_EQ(tensors.second[1][2].item<double>(), start + 64 + 5);
    EXPECT_EQ(tensors.view[1].item<double>(), start + 64 + 4);
    tensors.buffer.detach();
    EXPECT_EQ(refusal(tensors), "is free");
  }
}

TEST(FreeableBuffer, TensorsKeepTheMemoryAlive) {
  at::Tensor tensor = at::zeros({4});
  at::Tensor memory = at::full({128}, 3.0f);
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage = memory.storage().getWeakStorageImpl();
  {
    FreeableBuffer buffer(128, at::kFloat, at::kCPU, "is free");
    buffer.adopt(tensor.storage(), 64);
    buffer.attach(std::move(memory));
  }
  EXPECT_EQ(tensor[3].item<float>(), 3.0f);
  EXPECT_FALSE(storage.expired());
  tensor.reset();
  EXPECT_TRUE(storage.expired());
}

TEST(FreeableBuffer, AnAdoptedStorageCannotBeResizedAndTellsOfOtherMemory) {
  TwoTensors tensors;
  EXPECT_TRUE(tensors.buffer.is_intact(1));
  tensors.buffer.attach(at::ones({128}));
  EXPECT_TRUE(tensors.buffer.is_intact(1));
  EXPECT_THROW(tensors.second.resize_({100}), c10::Error);
  EXPECT_TRUE(tensors.buffer.is_intact(1));
  tensors.second.storage().set_data_ptr_noswap(at::ones({6}).storage().set_data_ptr({}));
  EXPECT_TRUE(tensors.buffer.is_intact(0));
  EXPECT_FALSE(tensors.buffer.is_intact(1));
}

TEST(FreeableBuffer, ProtectionOutlastsMemoryThatComesAndGoes) {
  TwoTensors tensors;
  FreeableBuffer& buffer = tensors.buffer;
  EXPECT_EQ(refusal(tensors), "is free");
  buffer.attach(at::ones({128}));
  EXPECT_EQ(refusal(tensors), "");

  buffer.protect("is protected");
  EXPECT_EQ(refusal(tensors), "is protected");
  buffer.detach();
  EXPECT_EQ(refusal(tensors), "is protected");
  buffer.attach(at::ones({128}));
  EXPECT_EQ(refusal(tensors), "is protected");
  buffer.forbid("is forbidden");
  EXPECT_EQ(refusal(tensors), "is forbidden");
  buffer.permit();
  EXPECT_EQ(refusal(tensors), "is protected") << "permission does not end protection";
  EXPECT_TRUE(buffer.is_protected());

  buffer.unprotect();
  EXPECT_EQ(refusal(tensors), "");
  EXPECT_TRUE(tensors.view.eq(1).all().item<bool>());
  buffer.detach();
  EXPECT_EQ(refusal(tensors), "is free");
}

TEST(FreeableBuffer, GivesBackMemoryThatIsReplaced) {
  TwoTensors tensors;
  FreeableBuffer& buffer = tensors.buffer;
  const at::Tensor first = at::ones({128});
  const at::Tensor second = at::zeros({128});
  buffer.attach(first);
  EXPECT_TRUE(buffer.replace(second).is_same(first));
  EXPECT_TRUE(buffer.memory().is_same(second));
  EXPECT_TRUE(tensors.view.eq(0).all().item<bool>());
  EXPECT_TRUE(first.eq(1).all().item<bool>());

  buffer.forbid("is forbidden");
  buffer.replace(first);
  EXPECT_EQ(refusal(tensors), "is forbidden");
  buffer.permit();
  EXPECT_TRUE(tensors.view.eq(1).all().item<bool>());
}

/// Running operators of other threads may ask for the address at any time.
TEST(FreeableBuffer, WhatIsReadableStaysSoWhileItsTextChanges) {
  TwoTensors tensors;
  tensors.buffer.attach(at::ones({128}));
  std::atomic<bool> is_over = false;
  std::string seen;
  std::thread reader([&] {
    while (!is_over && seen.empty()) seen = refusal(tensors.first);
  });
  for (int i = 0; i < 20000; ++i) tensors.buffer.set_access_error(i % 2 == 0 ? "one" : "two");
  is_over = true;
  reader.join();
  EXPECT_EQ(seen, "");
  tensors.buffer.detach();
  EXPECT_EQ(refusal(tensors), "two");
}

/// Another thread may be about to throw the text.
TEST(FreeableBuffer, AnEqualTextStaysWhereItIs) {
  TwoTensors tensors;
  const auto text = [&] {
    return tensors.first.storage()
        .unsafeGetStorageImpl()
        ->get_extra_meta()
        .custom_data_ptr_error_msg_->data();
  };
  const std::string error = "a text that is too long to lie inside the string itself";
  tensors.buffer.set_access_error(error);
  const char* const before = text();
  tensors.buffer.attach(at::ones({128}));
  tensors.buffer.detach();
  tensors.buffer.forbid(error);
  tensors.buffer.permit();
  EXPECT_EQ(text(), before);
  tensors.buffer.forbid(error + error);
  EXPECT_NE(text(), before);
}

TEST(FreeableBuffer, UnprotectingDoesNotPermit) {
  TwoTensors tensors;
  FreeableBuffer& buffer = tensors.buffer;
  buffer.attach(at::ones({128}));
  buffer.forbid("is forbidden");
  buffer.protect("is protected");
  EXPECT_EQ(refusal(tensors), "is forbidden");
  buffer.unprotect();
  EXPECT_EQ(refusal(tensors), "is forbidden");
  buffer.permit();
  EXPECT_EQ(refusal(tensors), "");
}

}  // namespace
}  // namespace tessera::internal
