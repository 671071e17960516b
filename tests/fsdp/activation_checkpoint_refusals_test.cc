#include "tessera/activation_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/fsdp/checkpoint_fixture.h"
#include "tessera/tests/support/message_of.h"

// The refusals of checkpoint(), and their texts.

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

TEST(ActivationCheckpointRefusals, RefusesDoubleBackward) {
  const Tensor x = leaf({3});
  const Tensor y = checkpoint([](const Tensor& in) { return in.exp(); }, x);
  EXPECT_THAT(message_of([&] { y.sum().backward({}, std::nullopt, /*create_graph=*/true); }),
              HasSubstr("[checkpoint] backward: got create_graph=true, expected false"));
}

TEST(ActivationCheckpointRefusals, RefusesAutogradGradAndBackwardWithInputs) {
  const Tensor x = leaf({3});
  const auto loss = [&] { return checkpoint([](const Tensor& in) { return in.exp(); }, x).sum(); };
  const std::string text = "[checkpoint] backward: got autograd::grad() or backward() with inputs";
  EXPECT_THAT(message_of([&] { torch::autograd::grad({loss()}, {x}); }), HasSubstr(text));
  EXPECT_THAT(message_of([&] { torch::autograd::backward({loss()}, {}, {}, false, {x}); }),
              HasSubstr(text));
  // Works even if the checkpoint is inside another, on a path that was not asked for.
  const Tensor y = x * 2;
  const Tensor after = checkpoint([](const Tensor& in) { return in.exp(); }, y);
  EXPECT_TRUE(at::equal(torch::autograd::grad({after.sum()}, {after}).at(0), at::ones_like(x)));
}

TEST(ActivationCheckpointRefusals, NoticesAnInputThatChangedBeforeBackward) {
  const Tensor x = leaf({3});
  Tensor y = x * 2;
  const Tensor loss = checkpoint([](const Tensor& in) { return in.exp(); }, y).sum();
  y.add_(1);
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(ActivationCheckpointRefusals, RefusesAFunctionThatWritesToItsInput) {
  const Tensor x = leaf({3});
  EXPECT_THAT(
      message_of([&] { checkpoint([](int, Tensor in) { return in.mul_(2).exp(); }, 1, x * 2); }),
      HasSubstr("[checkpoint] input tensor 0: got a write in fn, expected none"));
}

TEST(ActivationCheckpointRefusals, RefusesACapturedTensorWithAGraph) {
  const Tensor x = leaf({3});
  const Tensor hidden = x.exp();
  const Tensor loss = checkpoint([&](const Tensor& in) { return in * hidden; }, x).sum();
  EXPECT_THAT(message_of([&] { loss.backward(); }),
              HasSubstr("[checkpoint] fn: got a captured tensor that has a graph of its own "
                        "(ExpBackward0)"));
  expect_as_plain(  // the remedy that the message names
      [&](auto run) {
        return run([](const Tensor& in, const Tensor& too) { return in * too; }, x, x.exp()).sum();
      },
      {x});
}

TEST(ActivationCheckpointRefusals, RefusesItsOwnOutputInsteadOfRecomputingForEver) {
  Tensor x = leaf({3}) * 2;
  x = checkpoint([&x] { return x.exp(); });  // by reference: when it runs again, x is the output
  EXPECT_THAT(message_of([&] { x.sum().backward(); }),
              HasSubstr("(TesseraCheckpointBackward), expected such tensors among the inputs"));
}

TEST(ActivationCheckpointRefusals, RefusesASecondBackwardThroughItWhileItRecomputes) {
  const Tensor x = leaf({3});
  Tensor loss;
  int runs = 0;
  std::string error;
  const auto fn = [&](const Tensor& in) {
    if (++runs == 2) {
      std::thread([&] { error = message_of([&] { loss.backward({}, true); }); }).join();
    }
    return in.exp();
  };
  loss = checkpoint(fn, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(error, HasSubstr("got a backward through a checkpoint that is recomputing"));
  EXPECT_TRUE(at::equal(x.grad(), x.exp()));
}

TEST(ActivationCheckpointRefusals, RefusesAFunctionThatReturnsSomethingElseTheSecondTime) {
  const Tensor x = leaf({4});
  int runs = 0;
  const auto loss =
      checkpoint([&](const Tensor& in) { return in.slice(0, runs++).exp(); }, x).sum();
  EXPECT_THAT(message_of([&] { loss.backward(); }),
              HasSubstr("[checkpoint] fn: got output 0 of double [3] when run again, expected "
                        "double [4] as in the forward"));
  runs = 1;
  const auto list = checkpoint(
      [&](const Tensor& in) { return std::vector<Tensor>(static_cast<size_t>(runs++), in.exp()); },
      x);
  EXPECT_THAT(message_of([&] { list[0].sum().backward(); }),
              HasSubstr("got 2 output tensors when run again, expected 1"));
}

TEST(ActivationCheckpointRefusals, RefusesOtherDevicesUnlessTheRandomStateIsToBeIgnored) {
  const Tensor x = at::empty({3}, at::kMeta).set_requires_grad(true);
  const auto fn = [](const Tensor& in) { return in.exp(); };
  EXPECT_THAT(message_of([&] { checkpoint(fn, x); }),
              HasSubstr("[checkpoint] input tensor 0: got device meta, expected cpu or one GPU"));
  checkpoint({.preserve_random_state = false}, fn, x).sum().backward();
  EXPECT_TRUE(x.grad().is_meta());
}

TEST(ActivationCheckpointRefusals, LetsExceptionsOfTheFunctionThrough) {
  struct Oops {};
  const Tensor x = leaf({3});
  int runs = 0;
  const auto fn = [&](const Tensor& in) {
    if (++runs == 2) throw Oops();
    return in.exp();
  };
  const Tensor loss = checkpoint(fn, x).sum();
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), Oops);
  loss.backward();  // and can be run once more
  EXPECT_TRUE(at::equal(x.grad(), x.exp()));
  runs = 1;
  EXPECT_THROW(checkpoint(fn, x), Oops);
}

}  // namespace
}  // namespace tessera::internal::testing
