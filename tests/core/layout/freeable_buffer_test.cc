#include "tessera/core/layout/freeable_buffer.h"

#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

/// "" if the data can be read.
std::string refusal(const FreeableBuffer& buffer) {
  try {
    buffer.tensor().const_data_ptr();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FreeableBuffer, ASealOutlastsMemoryThatComesAndGoes) {
  FreeableBuffer buffer(4, at::kFloat, at::kCPU, "is free");
  EXPECT_EQ(refusal(buffer), "is free");
  buffer.attach(at::ones({4}));
  EXPECT_EQ(refusal(buffer), "");

  buffer.seal("is sealed");
  EXPECT_EQ(refusal(buffer), "is sealed");
  buffer.detach();
  EXPECT_EQ(refusal(buffer), "is sealed");
  buffer.attach(at::ones({4}));
  EXPECT_EQ(refusal(buffer), "is sealed");
  buffer.forbid("is forbidden");
  EXPECT_EQ(refusal(buffer), "is forbidden");
  buffer.permit();
  EXPECT_EQ(refusal(buffer), "is sealed") << "permission does not break a seal";
  EXPECT_TRUE(buffer.is_sealed());

  buffer.unseal();
  EXPECT_EQ(refusal(buffer), "");
  EXPECT_TRUE(buffer.tensor().eq(1).all().item<bool>());
  buffer.detach();
  EXPECT_EQ(refusal(buffer), "is free");
}

TEST(FreeableBuffer, UnsealingDoesNotPermit) {
  FreeableBuffer buffer(4, at::kFloat, at::kCPU, "is free");
  buffer.attach(at::ones({4}));
  buffer.forbid("is forbidden");
  buffer.seal("is sealed");
  EXPECT_EQ(refusal(buffer), "is forbidden");
  buffer.unseal();
  EXPECT_EQ(refusal(buffer), "is forbidden");
  buffer.permit();
  EXPECT_EQ(refusal(buffer), "");
}

}  // namespace
}  // namespace tessera
