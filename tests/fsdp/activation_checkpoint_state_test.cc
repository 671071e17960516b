#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/tests/fsdp/checkpoint_fixture.h"

// State that a checkpointed function uses besides its arguments: random numbers and autocast.

namespace tessera::internal::testing {
namespace {

using at::Tensor;

Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

/// An autocast region on the CPU.
class AutocastTo {
 public:
  explicit AutocastTo(at::ScalarType dtype = at::kBFloat16)
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  AutocastTo(const AutocastTo&) = delete;
  AutocastTo& operator=(const AutocastTo&) = delete;
  ~AutocastTo() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }

 private:
  bool enabled_;
  at::ScalarType dtype_;
};

Tensor weight(at::IntArrayRef sizes) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  return at::randn(sizes, generator, at::kFloat).set_requires_grad(true);
}

/// A function that draws random numbers, inside another that does so too.
template <typename Run>
Tensor noisy(const Run& run, const Tensor& w, const Tensor& x) {
  const auto inner = [&w](const Tensor& in) { return at::dropout(in.matmul(w), 0.5, true).tanh(); };
  const auto outer = [run, inner](const Tensor& in) {
    return at::dropout(run(inner, at::dropout(in, 0.5, true)), 0.5, true) + at::rand_like(in) * in;
  };
  torch::manual_seed(7);
  const Tensor y = run(outer, run(inner, x));
  return at::dropout(y, 0.5, true).sum();
}

TEST(ActivationCheckpointState, DropsTheSameElementsAgain) {
  const Tensor w = weight({16, 16});
  const Tensor x = weight({8, 16});
  expect_as_plain([&](auto run) { return noisy(run, w, x); }, {w, x});
}

TEST(ActivationCheckpointState, DropsOthersIfTheRandomStateIsNotPreserved) {
  const auto ignoring = [](const auto& fn, const Tensor& in) {
    return checkpoint({.preserve_random_state = false}, fn, in);
  };
  const Tensor w = weight({16, 16});
  const Tensor x = weight({8, 16});
  const auto got = gradients([&] { return noisy(ignoring, w, x); }, {w, x});
  const auto expected = gradients([&] { return noisy(Plainly(), w, x); }, {w, x});
  EXPECT_FALSE(at::equal(got[0], expected[0]));
  EXPECT_FALSE(at::equal(got[1], expected[1]));
}

TEST(ActivationCheckpointState, LeavesTheGeneratorOfBackwardAsItWas) {
  const Tensor w = weight({16, 16});
  const Tensor x = weight({8, 16});
  const Tensor loss = noisy(Checkpointed(), w, x);
  at::rand({100});
  const Tensor before = generator_state();
  loss.backward();
  EXPECT_TRUE(at::equal(generator_state(), before));
}

TEST(ActivationCheckpointState, CastsTheSameBits) {
  const Tensor w = weight({16, 16});
  const Tensor v = weight({16, 16});
  const Tensor x = weight({8, 16});
  // Used twice: the parameters and an activation from outside; w also as an input.
  const auto fn = [&v](const Tensor& in, const Tensor& w_in) {
    const Tensor y = in.matmul(w_in) + in.matmul(v);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return (y.matmul(w_in) * y.matmul(v)).tanh();
  };
  const auto loss = [&](const auto& run) {
    const AutocastTo autocast;
    return run(fn, x * 1.5, w).to(at::kFloat).sum();
  };
  expect_as_plain(loss, {w, v, x});

  // Negative control: fp32 gives other gradients.
  const auto without = gradients([&] { return (x * 1.5).matmul(w).matmul(v).sum(); }, {w});
  const auto with = gradients(
      [&] {
        const AutocastTo autocast;
        return (x * 1.5).matmul(w).matmul(v).sum();
      },
      {w});
  EXPECT_FALSE(at::equal(without[0], with[0]));
}

TEST(ActivationCheckpointState, CastsInARegionThatTheFunctionOpens) {
  const Tensor w = weight({16, 16});
  const Tensor x = weight({8, 16});
  expect_as_plain(
      [&](auto run) {
        return run(
                   [&w](const Tensor& in) {
                     const AutocastTo region;
                     Tensor y;
                     {
                       const AutocastTo nested(at::kHalf);
                       y = in.matmul(w.detach());
                     }
                     return in.matmul(w) * in.matmul(w) * y;
                   },
                   x * 2)
            .to(at::kFloat)
            .sum();
      },
      {w, x});
}

TEST(ActivationCheckpointState, LosesNoGradientToAutocastsCache) {
  const Tensor w = (weight({16, 16}) * 0.1).detach().set_requires_grad(true);
  const Tensor x = weight({8, 16});
  const auto loss = [&](const auto& run) {
    const auto fn = [&w](const Tensor& in) { return in.matmul(w).tanh(); };
    return run(fn, run(fn, x).matmul(w)).to(at::kFloat).sum();  // w inside and outside
  };
  const auto got = gradients(
      [&] {
        const AutocastTo autocast;
        return loss(Checkpointed());
      },
      {w, x});
  const auto expected = gradients([&] { return loss(Plainly()); }, {w, x});  // in fp32
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LT((got[i] - expected[i]).norm().item<float>(),
              0.02F * expected[i].norm().item<float>());
  }

  // With backward inside the region, where casts of the surrounding graph are still cached.
  for (const Tensor& tensor : {w, x}) tensor.mutable_grad() = Tensor();
  {
    const AutocastTo autocast;
    loss(Checkpointed()).backward();
  }
  EXPECT_TRUE(at::equal(w.grad(), got[0]));
  EXPECT_TRUE(at::equal(x.grad(), got[1]));
}

TEST(ActivationCheckpointState, LeavesNoCastsBehind) {
  const Tensor w = weight({16, 16});
  const Tensor x = weight({8, 16});
  c10::weak_intrusive_ptr<c10::StorageImpl> cast(c10::intrusive_ptr<c10::StorageImpl>{});
  const auto fn = [&](const Tensor& in) {
    const Tensor casted = at::autocast::cached_cast(at::kBFloat16, w, at::kCPU);
    cast = c10::weak_intrusive_ptr<c10::StorageImpl>(casted.storage().getWeakStorageImpl());
    return in.matmul(casted);
  };
  const AutocastTo autocast;
  {
    const Tensor plain = fn(x);
    EXPECT_FALSE(cast.expired());  // the control: autocast's own behaviour
  }
  EXPECT_FALSE(cast.expired());
  at::autocast::clear_cache();

  const Tensor loss = checkpoint(fn, x).to(at::kFloat).sum();
  EXPECT_TRUE(cast.expired());
  loss.backward();
  EXPECT_TRUE(cast.expired());
  const at::NoGradGuard no_grad;
  w.zero_();
  EXPECT_EQ(fn(x).abs().sum().item<float>(), 0.0F);  // does not use a cast of the old values
}

TEST(ActivationCheckpointState, GivesTheForwardsStateToThreadsOfDeepBackwards) {
  const Tensor w = (weight({16, 16}) * 0.25).detach().set_requires_grad(true);
  const Tensor x = weight({8, 16});
  constexpr int kDepth = 80;  // beyond 60, backward continues on other threads
  std::vector<at::ScalarType> dtypes;
  const auto step = [&](const Tensor& in) {
    dtypes.push_back(at::autocast::get_autocast_dtype(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    return at::dropout(in.matmul(w).tanh(), 0.1, true);
  };
  const auto gradients_of = [&](auto run) {
    std::function<Tensor(const Tensor&, int)> deep = [&](const Tensor& in, int depth) -> Tensor {
      return depth == 0 ? in : run(deep, step(in).to(at::kFloat), depth - 1);
    };
    return gradients(
        [&] {
          const AutocastTo autocast(at::kHalf);
          torch::manual_seed(3);
          return deep(x, kDepth).to(at::kFloat).sum();
        },
        {x});
  };
  const auto expected = gradients_of(Plainly());
  EXPECT_TRUE(expected[0].isfinite().all().item<bool>());
  EXPECT_GT(expected[0].abs().max().item<float>(), 0.0F);
  expect_equal(gradients_of(Checkpointed()), expected);
  EXPECT_GT(dtypes.size(), 3u * kDepth);
  for (const at::ScalarType dtype : dtypes) EXPECT_EQ(dtype, at::kHalf);
}

TEST(ActivationCheckpointState, PutsEverythingBackAfterAnException) {
  const Tensor x = weight({8, 16});
  int runs = 0;
  const auto fn = [&](const Tensor& in) -> Tensor {
    const Tensor noise = at::rand_like(in);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_cache_enabled(false);
    if (++runs != 2) throw std::runtime_error("from fn");
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return in * noise;
  };
  const auto expect_as_before = [](const std::function<void()>& body) {
    const Tensor before = generator_state();
    EXPECT_THROW(body(), std::runtime_error);
    EXPECT_TRUE(at::equal(generator_state(), before));
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  };
  expect_as_before([&] { checkpoint(fn, x); });
  const Tensor loss = checkpoint(fn, x).sum();
  expect_as_before([&] { loss.backward(); });
}

}  // namespace
}  // namespace tessera::internal::testing
