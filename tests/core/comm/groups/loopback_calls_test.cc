// In a world of one, calls that otherwise involve peers: their values, and which are refused.
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/errors.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

TEST(LoopbackCalls, CopyWhatACollectiveWouldBring) {
  LoopbackGroup group;
  const at::Tensor given = at::arange(5, at::kShort);
  at::Tensor taken = at::zeros({5}, at::kShort);
  group.gather(taken, given, 0, "g")->wait();
  EXPECT_TRUE(at::equal(taken, given));
  taken.zero_();
  group.scatter(taken, given, 0, "s")->wait();
  EXPECT_TRUE(at::equal(taken, given));
  taken.zero_();
  group.all_to_all(taken, given, "a")->wait();
  EXPECT_TRUE(at::equal(taken, given));
  taken.zero_();
  group.all_to_all(taken, given, {5}, {5}, "u")->wait();
  EXPECT_TRUE(at::equal(taken, given));
}

TEST(LoopbackCalls, MessagesToItselfMeetByTag) {
  LoopbackGroup group;
  at::Tensor first = at::zeros({3}), second = at::zeros({2}), third = at::zeros({3});
  const auto early = group.irecv(first, 0, "a");
  EXPECT_FALSE(early->is_completed());
  group.send(at::full({2}, 7.0f), 0, "b");
  group.send(at::full({3}, 1.0f), 0, "a");
  group.send(at::full({3}, 2.0f), 0, "a");
  early->wait();
  EXPECT_EQ(early->source(), 0);
  EXPECT_EQ(group.recv(third, kAnySource, "a"), 0);
  EXPECT_EQ(group.recv(second, 0, "b"), 0);
  EXPECT_TRUE(at::equal(first, at::full({3}, 1.0f)));
  EXPECT_TRUE(at::equal(third, at::full({3}, 2.0f)));
  EXPECT_TRUE(at::equal(second, at::full({2}, 7.0f)));
  at::Tensor in_batch = at::zeros({2});
  const auto works = group.batch_isend_irecv(
      {{Op::kRecv, in_batch, 0, "c"}, {Op::kSend, at::full({2}, 3.0f), 0, "c"}});
  for (const auto& work : works) work->wait();
  EXPECT_TRUE(at::equal(in_batch, at::full({2}, 3.0f)));
}

TEST(LoopbackCalls, AMessageThatIsNotSentIsNamedInsteadOfAwaited) {
  EXPECT_THAT(message_of([] {
                LoopbackGroup group;
                at::Tensor tensor = at::zeros({3});
                group.recv(tensor, 0, "late");
              }),
              HasSubstr("recv 'late' on group 'world', rank 0: waits for a message that rank 0 has "
                        "to send itself first"));
  EXPECT_THAT(message_of([] {
                LoopbackGroup group;
                group.send(at::zeros({2}, at::kLong), 0, "m");
                at::Tensor tensor = at::zeros({3});
                group.recv(tensor, 0, "m");
              }),
              HasSubstr("rank 0 called recv float32[3] from rank 0 'm' where rank 0 called send "
                        "int64[2] to rank 0 'm'"));
}

TEST(LoopbackCalls, SeveralTensorsGoIntoOneCollective) {
  LoopbackGroup group;
  std::vector<at::Tensor> tensors = {at::arange(3, at::kFloat), at::full({2, 2}, 5.0f)};
  group.all_reduce_coalesced(tensors, ReduceOp::kSum, "sum", 0)->wait();
  group.broadcast_coalesced(tensors, 0)->wait();
  EXPECT_TRUE(at::equal(tensors[0], at::arange(3, at::kFloat)));
  std::vector<at::Tensor> outputs = {at::zeros({3}), at::zeros({4})};
  group.all_gather_coalesced(outputs, tensors)->wait();
  EXPECT_TRUE(at::equal(outputs[1], at::full({4}, 5.0f)));
  outputs[0].zero_();
  group.reduce_scatter_coalesced(outputs, tensors, ReduceOp::kMax)->wait();
  EXPECT_TRUE(at::equal(outputs[0], tensors[0]));
  EXPECT_THAT(
      message_of([&] {
        group.all_reduce_coalesced({at::zeros({1}), at::zeros({1}, at::kLong)}, ReduceOp::kSum);
      }),
      HasSubstr("all_reduce_coalesced: got Float and Long, expected one dtype"));
  EXPECT_THAT(
      message_of([&] { group.all_gather_coalesced({at::zeros({4})}, {at::zeros({3})}); }),
      HasSubstr("got output of 4 and input of 3 elements on 1 ranks, expected output of 3"));
}

TEST(LoopbackCalls, BytesComeAsTheyWere) {
  LoopbackGroup group;
  std::string bytes("a\0b", 3);
  group.broadcast_bytes(bytes, 0);
  EXPECT_EQ(bytes, std::string("a\0b", 3));
  EXPECT_THAT(group.all_gather_bytes("x"), ElementsAre("x"));
  EXPECT_THAT(group.gather_bytes("", 0), ElementsAre(""));
  EXPECT_EQ(group.scatter_bytes({"to 0"}, 0), "to 0");
}

TEST(LoopbackCalls, RefuseWhatDoesNotFit) {
  LoopbackGroup group;
  const at::Tensor four = at::zeros({4}), three = at::zeros({3});
  EXPECT_THAT(message_of([&] { group.all_to_all(four, three); }),
              HasSubstr("all_to_all: got output of 4 and input of 3 elements on 1 ranks"));
  EXPECT_THAT(message_of([&] { group.all_to_all(four, three, {3}, {3}); }),
              HasSubstr("all_to_all: got output_counts [3] of a tensor of 4 elements"));
  EXPECT_THAT(message_of([&] { group.all_to_all(four, three, {3}, {4}, "t"); }),
              HasSubstr("rank 0 gives rank 0 3 elements where rank 0 expects 4 from rank 0, in "
                        "all_to_all 't'"));
  LoopbackGroup other;
  EXPECT_THAT(message_of([&] { other.all_to_all(four, four); }),
              HasSubstr("all_to_all: got output that overlaps input"));
  EXPECT_THAT(message_of([&] { other.gather(four, three, 0); }),
              HasSubstr("gather: got output of 4 and input of 3 elements"));
  EXPECT_THAT(message_of([&] { other.scatter(four, three, 0); }),
              HasSubstr("scatter: got input of 3 and output of 4 elements"));
  EXPECT_THAT(message_of([&] { other.isend(four, 1); }),
              HasSubstr("send: got rank 1, expected 0 to 0; ranks are numbered within the group"));
  EXPECT_THAT(message_of([&] { other.irecv(four, 1); }),
              HasSubstr("expected 0 to 0, or kAnySource"));
  EXPECT_THAT(message_of([&] { other.isend(four, kAnySource); }), HasSubstr("send: got rank -2"));
  EXPECT_THAT(message_of([&] { other.all_reduce(four, ReduceOp::kBitOr); }),
              HasSubstr("all_reduce: got BOR of Float, expected integers or bool"));
  EXPECT_THAT(message_of([&] {
                other.batch_isend_irecv({{Op::kAllReduce, four, 0}});
              }),
              HasSubstr("batch_isend_irecv: got all_reduce, expected kSend or kRecv"));
}

}  // namespace
}  // namespace tessera::internal
