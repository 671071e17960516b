#include "tessera/state_dict.h"

#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

StateEntry matrix(std::vector<StatePiece> pieces) {
  return {.sizes = {2, 3}, .strides = {3, 1}, .dtype = at::kFloat, .pieces = std::move(pieces)};
}

at::Tensor values(int64_t begin, int64_t end) {
  return at::arange(begin, end, at::TensorOptions(at::kFloat));
}

TEST(StateEntry, GivesItsTensorInLogicalShapeWithoutACopy) {
  StateEntry entry = matrix({{0, values(0, 6)}});
  EXPECT_EQ(entry.numel(), 6);
  ASSERT_TRUE(entry.is_whole());
  EXPECT_TRUE(at::equal(entry.tensor(), values(0, 6).view({2, 3})));
  EXPECT_EQ(entry.tensor().const_data_ptr(), entry.pieces[0].values.const_data_ptr());
  entry.strides = {1, 2};
  EXPECT_TRUE(at::equal(entry.tensor(), values(0, 6).view({3, 2}).t()));
}

TEST(StateEntry, NumbersAndEmptyTensorsAreWholeToo) {
  const StateEntry number{
      .sizes = {}, .strides = {}, .dtype = at::kLong, .pieces = {{0, at::tensor({7}, at::kLong)}}};
  EXPECT_EQ(number.numel(), 1);
  EXPECT_EQ(number.tensor().item<int64_t>(), 7);
  EXPECT_EQ(number.tensor().dim(), 0);
  const StateEntry empty{
      .sizes = {0, 3}, .strides = {3, 1}, .dtype = at::kFloat, .pieces = {{0, values(0, 0)}}};
  EXPECT_EQ(empty.tensor().sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(StateEntry, RefusesTheTensorOfAPart) {
  for (const StateEntry& entry :
       {matrix({}), matrix({{0, values(0, 5)}}), matrix({{1, values(0, 6)}}),
        matrix({{0, values(0, 3)}, {3, values(3, 6)}}), matrix({{0, at::Tensor()}})}) {
    EXPECT_FALSE(entry.is_whole());
    EXPECT_THAT([&] { entry.tensor(); },
                ThrowsMessage<c10::Error>(HasSubstr("pieces, expected one that covers it; take "
                                                    "state_dict(StateScope::kEveryRank)")));
  }
}

TEST(StateEntry, SaysWhatIsMalformed) {
  EXPECT_EQ(matrix({{0, values(0, 6)}}).problem(), "");
  EXPECT_EQ(matrix({}).problem(), "");
  EXPECT_EQ(matrix({{4, values(0, 2)}, {0, values(0, 6)}}).problem(), "");
  EXPECT_EQ(matrix({{4, values(0, 3)}}).problem(),
            "got a piece of elements 4 to 7, expected a part of 0 to 6");
  EXPECT_EQ(matrix({{-1, values(0, 3)}}).problem(),
            "got a piece of elements -1 to 2, expected a part of 0 to 6");
  EXPECT_EQ(matrix({{0, values(0, 6).to(at::kDouble)}}).problem(),
            "got a piece of Double, expected Float as the entry says");
  const std::string no_configuration =
      "got a piece that is no contiguous 1-d CPU tensor, expected one";
  EXPECT_EQ(matrix({{0, at::Tensor()}}).problem(), no_configuration);
  EXPECT_EQ(matrix({{0, values(0, 6).view({2, 3})}}).problem(), no_configuration);
  EXPECT_EQ(matrix({{0, values(0, 12).slice(0, 0, 12, 2)}}).problem(), no_configuration);

  const at::Tensor freed = values(0, 6);
  freed.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "its memory is free");
  EXPECT_EQ(matrix({{0, freed}}).problem(),
            "got a piece whose values cannot be read: its memory is free");
  const at::Tensor empty = values(0, 6);
  empty.storage().unsafeGetStorageImpl()->release_resources();
  for (const at::Tensor& unreadable :
       {empty, at::_neg_view(values(0, 6)), at::_efficientzerotensor({6}, at::kFloat)}) {
    EXPECT_THAT(matrix({{0, unreadable}}).problem(),
                HasSubstr("got a piece whose values cannot be read: it"));
  }

  StateEntry entry = matrix({});
  const auto strides = [&entry](std::vector<int64_t> given) {
    entry.strides = std::move(given);
    return entry.problem();
  };
  EXPECT_EQ(strides({1, 2}), "") << "transposed";
  const char* const not_dense = ", expected dense ones without overlap";
  EXPECT_EQ(strides({4, 1}), std::string("got strides [4, 1] for sizes [2, 3]") + not_dense);
  EXPECT_EQ(strides({0, 1}), std::string("got strides [0, 1] for sizes [2, 3]") + not_dense);
  EXPECT_EQ(strides({1}), std::string("got strides [1] for sizes [2, 3]") + not_dense);
  entry.sizes = {1, 3};
  EXPECT_EQ(strides({77, 1}), "") << "one element has no stride";
  entry.sizes = {-1, -3};
  EXPECT_THAT(strides({3, 1}), HasSubstr("got sizes [-1, -3], expected none below 0"));
}

TEST(StateDict, MergesPiecesBehindThoseThatAreThere) {
  StateDict left{.entries = {{"both", matrix({{0, values(0, 2)}})}, {"left", matrix({})}}};
  StateDict right{
      .entries = {{"both", matrix({{2, values(2, 6)}})}, {"right", matrix({{0, values(0, 6)}})}}};
  const void* const moved = right.entries["right"].pieces[0].values.const_data_ptr();
  left.merge(std::move(right));
  ASSERT_EQ(left.entries.size(), 3u);
  ASSERT_EQ(left.entries["both"].pieces.size(), 2u);
  EXPECT_EQ(left.entries["both"].pieces[0].begin, 0);
  EXPECT_EQ(left.entries["both"].pieces[1].begin, 2);
  EXPECT_TRUE(at::equal(left.entries["both"].pieces[1].values, values(2, 6)));
  EXPECT_FALSE(left.entries["both"].is_whole()) << "merging does not join pieces";
  EXPECT_EQ(left.entries["right"].tensor().const_data_ptr(), moved) << "no copy";
}

TEST(StateDict, RefusesToMergeWhatDiffersAndAddsNothing) {
  const auto refusal = [](auto change) {
    StateDict left{.entries = {{"w", matrix({{0, values(0, 2)}})}}};
    StateDict right{.entries = {{"a", matrix({})}, {"w", matrix({{2, values(2, 6)}})}}};
    change(right.entries["w"]);
    std::string text;
    try {
      left.merge(std::move(right));
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_EQ(left.entries.size(), text.empty() ? 2u : 1u);
    EXPECT_EQ(left.entries["w"].pieces.size(), text.empty() ? 2u : 1u);
    return text;
  };
  EXPECT_EQ(refusal([](StateEntry&) {}), "") << "negative control: equal ones merge";
  EXPECT_EQ(refusal([](StateEntry& entry) {
              entry.sizes = {3, 2};
            }),
            "[state] merge 'w': got sizes [3, 2], expected [2, 3]; merge states of one run");
  EXPECT_EQ(refusal([](StateEntry& entry) {
              entry.strides = {1, 2};
            }),
            "[state] merge 'w': got strides [1, 2], expected [3, 1]; merge states of one run");
  EXPECT_EQ(refusal([](StateEntry& entry) { entry.dtype = at::kDouble; }),
            "[state] merge 'w': got dtype Double, expected Float; merge states of one run");
}

}  // namespace
}  // namespace tessera::internal
