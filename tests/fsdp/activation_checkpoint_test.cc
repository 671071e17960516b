#include "tessera/activation_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/fsdp/checkpoint_fixture.h"
#include "tessera/tests/support/message_of.h"

// Inputs and outputs of checkpoints.

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

TEST(ActivationCheckpoint, GivesTheGradientsOfThePlainFunction) {
  const Tensor w = leaf({3, 3}, 0.5);
  const Tensor x = leaf({2, 3});
  expect_as_plain(
      [&](auto run) {
        return run([&](const Tensor& in) { return at::tanh(in.matmul(w)); }, x * 2).sum();
      },
      {w, x});
}

TEST(ActivationCheckpoint, TakesInputsOfEveryKind) {
  const Tensor x = leaf({4, 3});
  const Tensor y = leaf({4, 3}, 1.0);
  const Tensor z = leaf({3}, 2.0);
  const Tensor constant = at::ones({3}, at::kDouble);
  const Tensor index = at::tensor({2, 0, 2}, at::kLong);
  struct Scale {
    double factor;
  };
  const auto fn = [](const Tensor& a, Tensor b, const Tensor& undefined, const Tensor& fixed,
                     const Tensor& configurations, double factor, const std::string& name,
                     const Scale& scale, const std::vector<Tensor>& list,
                     const std::optional<Tensor>& none, const std::pair<Tensor, int>& pair) {
    EXPECT_FALSE(undefined.defined());
    EXPECT_FALSE(none.has_value());
    EXPECT_FALSE(fixed.requires_grad());
    EXPECT_EQ(configurations.scalar_type(), at::kLong);
    Tensor sum = (a * b).index_select(0, configurations) * factor * scale.factor;
    if (name == "cubed") sum = sum.pow(pair.second);
    return sum * list.at(0) + list.at(1) * fixed * pair.first;
  };
  expect_as_plain(
      [&](auto run) {
        return run(fn, x * 1.5, y, Tensor(), constant, index, 0.5, std::string("cubed"), Scale{3.0},
                   std::vector<Tensor>{z * 2, z}, std::optional<Tensor>(), std::make_pair(z + 1, 3))
            .sum();
      },
      {x, y, z});
}

TEST(ActivationCheckpoint, CallsWhateverInvokeCalls) {
  torch::nn::Linear layer(torch::nn::LinearOptions(3, 3));
  layer->to(at::kDouble);
  torch::nn::Sequential chain(layer, torch::nn::Tanh());
  struct Net {
    torch::nn::Linear layer;
    Tensor half(const Tensor& x, double factor) { return layer(x) * factor; }
  } net{layer};
  const Tensor x = leaf({2, 3});
  const std::vector<Tensor> leaves = {x, layer->weight, layer->bias};
  expect_as_plain([&](auto run) { return run(layer, x).pow(2).sum(); }, leaves);
  expect_as_plain([&](auto run) { return run(chain, x).pow(2).sum(); }, leaves);
  expect_as_plain([&](auto run) { return run(layer.ptr(), x).pow(2).sum(); }, leaves);
  expect_as_plain([&](auto run) { return run(&Net::half, &net, x, 0.5).pow(2).sum(); }, leaves);
  auto movable = [layer, owned = std::make_unique<double>(3.0)](const Tensor& in) mutable {
    return layer(in) * *owned;
  };
  expect_equal(gradients([&] { return checkpoint(std::move(movable), x).sum(); }, leaves),
               gradients([&] { return (layer(x) * 3.0).sum(); }, leaves));
}

TEST(ActivationCheckpoint, ReturnsOutputsOfEveryKind) {
  const Tensor x = leaf({4, 3});
  expect_as_plain(
      [&](auto run) {
        auto [a, b] = run([](const Tensor& in) { return std::make_tuple(in.sin(), in.exp()); }, x);
        return (a * b).sum();
      },
      {x});
  expect_as_plain(
      [&](auto run) {
        const auto pair =
            run([](const Tensor& in) { return std::make_pair(in.sin(), in * in); }, x);
        return (pair.first * pair.second).sum();
      },
      {x});
  expect_as_plain(
      [&](auto run) {
        const std::vector<Tensor> parts =
            run([](const Tensor& in) { return in.exp().split(2); }, x);
        EXPECT_EQ(parts.size(), 2u);
        return (parts[0] * parts[1]).sum();
      },
      {x});
  expect_as_plain(  // as an LSTM returns it
      [&](auto run) {
        const auto [out, state] = run(
            [](const Tensor& in) {
              return std::make_tuple(in.sin(), std::make_tuple(in.exp(), in.cos()));
            },
            x);
        return (out * std::get<0>(state) + std::get<1>(state)).sum();
      },
      {x});
}

TEST(ActivationCheckpoint, LeavesOutputsOutThatTheLossDoesNotUse) {
  const Tensor x = leaf({3});
  const Tensor used = leaf({3}, 1.0);
  const Tensor unused = leaf({3}, 2.0);
  const auto fn = [&](const Tensor& in) {
    return std::make_tuple(in * used, (in * unused).sin(), in.argmax(), Tensor(), in.detach() * 2);
  };
  expect_as_plain([&](auto run) { return std::get<0>(run(fn, x)).sum(); }, {x, used, unused});
  expect_as_plain(
      [&](auto run) {
        const auto all = run(fn, x);
        EXPECT_FALSE(std::get<3>(all).defined());
        EXPECT_FALSE(std::get<2>(all).requires_grad());
        return (std::get<0>(all) * std::get<4>(all)).sum();
      },
      {x, used, unused});
}

TEST(ActivationCheckpoint, ReturnsInputsAndViewsAndOneTensorTwice) {
  const Tensor x = leaf({4, 3});
  const Tensor index = at::tensor({1});
  expect_as_plain(
      [&](auto run) {
        const auto [same, view, again, integers] = run(
            [](const Tensor& in, const Tensor& configurations) {
              return std::make_tuple(in, in.view({2, 6}), in, configurations);
            },
            x * 2, index);
        return (same * again).sum() + view.select(0, 1).pow(3).sum() +
               same.index_select(0, integers).sum();
      },
      {x});
}

TEST(ActivationCheckpoint, LeavesAnInputThatItReturnsAsItWas) {
  const Tensor x = leaf({3});
  const Tensor y = x * 2;
  const auto same = [](const Tensor& in) { return in; };
  EXPECT_FALSE(checkpoint(same, x).is_leaf());
  EXPECT_TRUE(x.is_leaf());
  const auto before = y.grad_fn();
  checkpoint(same, y);
  EXPECT_EQ(y.grad_fn(), before);
}

TEST(ActivationCheckpoint, TrainsParametersWhoseInputsNeedNoGradient) {
  torch::nn::Embedding table(11, 4);
  const Tensor tokens = at::tensor({3, 1, 3, 7});
  expect_as_plain(
      [&](auto run) {
        const Tensor out = run([&](const Tensor& in) { return table(in).sin(); }, tokens);
        EXPECT_TRUE(out.requires_grad());
        return out.sum();
      },
      {table->weight});
  const auto none = [&] { return table->weight.sin(); };  // no inputs at all
  expect_as_plain([&](auto run) { return run(none).sum(); }, {table->weight});
}

TEST(ActivationCheckpoint, CostsNothingButTimeWhereNothingRequiresGrad) {
  const Tensor x = at::ones({3}, at::kDouble);
  const Tensor w = leaf({3});
  expect_as_plain(
      [&](auto run) { return (run([](const Tensor& in) { return in.sin(); }, x) * w).sum(); }, {w});
}

TEST(ActivationCheckpoint, IsAPlainCallWithoutGradMode) {
  const at::NoGradGuard no_grad;
  int runs = 0;
  const Tensor x = leaf({3});
  const Tensor y = checkpoint(
      [&](const Tensor& in) {
        ++runs;
        return in.sin();
      },
      x);
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(at::equal(y, x.sin()));
  const c10::InferenceMode inference;
  EXPECT_TRUE(checkpoint([](const Tensor& in) { return in.sin(); }, x).is_inference());
}

TEST(ActivationCheckpoint, KeepsInputsOnlyAndDropsThoseAfterBackward) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> activations;
  const Tensor x = leaf({64});
  const auto fn = [&](const Tensor& in) {
    const Tensor first = in.exp();  // exp saves its result
    const Tensor second = first.exp();
    for (const Tensor& tensor : {first, second}) {
      activations.emplace_back(tensor.storage().getWeakStorageImpl());
    }
    return second * 2;
  };
  const auto alive = [&] {
    return std::count_if(activations.begin(), activations.end(),
                         [](const auto& weak) { return !weak.expired(); });
  };
  {
    const Tensor loss = fn(x).sum();  // the control: a plain call keeps both
    EXPECT_EQ(alive(), 2);
  }
  activations.clear();
  const Tensor loss = checkpoint(fn, x).sum();
  EXPECT_EQ(activations.size(), 2u);
  EXPECT_EQ(alive(), 0);
  loss.backward();
  EXPECT_EQ(activations.size(), 4u);
  EXPECT_EQ(alive(), 0);
}

TEST(ActivationCheckpoint, DropsWhatItKeptOnceBackwardIsDone) {
  auto kept = std::make_shared<int>(0);
  Tensor input = leaf({3}) * 2;
  const auto weak_input =
      c10::weak_intrusive_ptr<c10::StorageImpl>(input.storage().getWeakStorageImpl());
  const Tensor out = checkpoint([kept](const Tensor& in) { return in.sin(); }, input);
  input = Tensor();
  EXPECT_EQ(kept.use_count(), 2);
  EXPECT_FALSE(weak_input.expired());
  out.sum().backward();  // `out` and its graph stay alive
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_TRUE(weak_input.expired());
}

TEST(ActivationCheckpoint, NestsAndChains) {
  const Tensor w = leaf({3, 3}, 0.2);
  const Tensor x = leaf({2, 3});
  expect_as_plain(
      [&](auto run) {
        const auto inner = [&](const Tensor& in) { return at::tanh(in.matmul(w)); };
        const auto outer = [run, inner](const Tensor& in) {
          return run(inner, run(inner, in).exp()) + in;
        };
        return run(outer, run(outer, x)).sum();
      },
      {w, x});
}

TEST(ActivationCheckpoint, NestsDeeperThanOneThreadRecurses) {
  const Tensor w = leaf({3}, 0.9);
  const Tensor x = leaf({3}, 0.1);
  std::function<Tensor(const Tensor&, int)> plain = [&](const Tensor& in, int depth) {
    return depth == 0 ? in : at::tanh(plain(in * w, depth - 1));
  };
  std::function<Tensor(const Tensor&, int)> nested = [&](const Tensor& in, int depth) {
    return depth == 0 ? in : at::tanh(checkpoint(nested, in * w, depth - 1));
  };
  constexpr int kDepth = 80;
  expect_equal(gradients([&] { return nested(x, kDepth).sum(); }, {w, x}),
               gradients([&] { return plain(x, kDepth).sum(); }, {w, x}));
}

TEST(ActivationCheckpoint, RunsAgainForASecondBackward) {
  Tensor x = leaf({3});
  int runs = 0;
  const Tensor loss = checkpoint(
                          [&](const Tensor& in) {
                            ++runs;
                            return in.exp();
                          },
                          x)
                          .sum();
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(at::equal(x.grad(), once * 2));
  EXPECT_THAT(message_of([&] { loss.backward(); }),
              HasSubstr("backward through the graph a second"));
}

TEST(ActivationCheckpoint, AllowsItsOutputToBeWrittenTo) {
  const Tensor x = leaf({3});
  expect_as_plain(
      [&](auto run) {
        Tensor y = run([](const Tensor& in) { return in * in; }, x);
        y.mul_(3);
        return y.sum();
      },
      {x});
}

}  // namespace
}  // namespace tessera::internal::testing
