// A storage that throws while access is denied, and permanently in a child of fork().
#include "tessera/core/layout/throwing_storage.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using testing::ForkedChild;
using ::testing::HasSubstr;
using testing::kNothingThrown;
using testing::message_of;
using testing::run_in_fork;

c10::DataPtr pointer_to(const at::Tensor& memory) {
  return {memory.mutable_data_ptr(), memory.device()};
}

class ThrowingStorageTest : public ::testing::Test {
 protected:
  std::string refusal() const {
    return message_of([this] { tensor_.const_data_ptr(); });
  }
  void allow() { storage_->point_to(pointer_to(memory_), ThrowingStorage::Access::kAllowed); }

  at::Tensor tensor_ = at::zeros({4});
  at::Tensor memory_ = at::ones({4});
  std::optional<ThrowingStorage> storage_ =
      std::make_optional<ThrowingStorage>(tensor_.storage(), at::kCPU, "is new");
};

TEST_F(ThrowingStorageTest, ThrowsUntilDataIsGivenAndWhenItIsBarred) {
  EXPECT_EQ(refusal(), "is new");
  allow();
  EXPECT_TRUE(tensor_.eq(1).all().item<bool>());
  storage_->deny("is denied");
  EXPECT_EQ(refusal(), "is denied");
  EXPECT_EQ(storage_->data(), memory_.data_ptr());
  allow();
  EXPECT_EQ(refusal(), kNothingThrown);
  storage_->point_to(pointer_to(memory_), ThrowingStorage::Access::kDenied);
  EXPECT_EQ(refusal(), "is denied");
}

TEST_F(ThrowingStorageTest, ThrowsInAChildWhateverIsDoneToIt) {
  allow();
  const ForkedChild child = run_in_fork([&] {
    std::string said = refusal();
    absl::StrAppend(&said, "\n", message_of([&] { tensor_.fill_(3); }));
    allow();
    storage_->deny("is denied");
    absl::StrAppend(&said, "\n", refusal());
    // And in a child of the child.
    absl::StrAppend(&said, "\n", run_in_fork([&] { return refusal(); }).text);
    storage_.reset();
    absl::StrAppend(&said, "\n", refusal());
    return said;
  });
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_THAT(child.text, HasSubstr("this process is a fork of a rank"));
  const std::string once = child.text.substr(0, child.text.find('\n'));
  EXPECT_EQ(child.text, absl::StrCat(once, "\n", once, "\n", once, "\n", once, "\n", once));
  EXPECT_EQ(refusal(), kNothingThrown) << "in the parent";
}

TEST_F(ThrowingStorageTest, LeavesStoragesAloneThatChildrenMakeOrThatItNoLongerHolds) {
  allow();
  at::Tensor kept = tensor_;
  storage_.reset();
  const ForkedChild child = run_in_fork([&] {
    tensor_ = at::zeros({4});
    storage_.emplace(tensor_.storage(), at::kCPU, "is new");
    const std::string before = refusal();
    allow();
    return absl::StrCat(before, " ", refusal(), " ", kept.sum().item<float>());
  });
  EXPECT_EQ(child.text, absl::StrCat("is new ", kNothingThrown, " 4"));
}

TEST_F(ThrowingStorageTest, ManyComeAndGoInAnyOrder) {
  std::vector<at::Tensor> tensors;
  std::vector<ThrowingStorage> storages;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(at::zeros({4}));
    storages.emplace_back(tensors.back().storage(), at::kCPU, "is new");
    storages.back().point_to(pointer_to(memory_), ThrowingStorage::Access::kAllowed);
  }
  std::vector<ThrowingStorage> left;
  for (int i = 0; i < 20; i += 3) left.push_back(std::move(storages[i]));
  storages.clear();
  const ForkedChild child = run_in_fork([&] {
    int refused = 0;
    for (const at::Tensor& tensor : tensors) {
      refused += message_of([&] { tensor.const_data_ptr(); }) == kNothingThrown ? 0 : 1;
    }
    return absl::StrCat(refused);
  });
  EXPECT_EQ(child.text, "7");
}

}  // namespace
}  // namespace tessera::internal
