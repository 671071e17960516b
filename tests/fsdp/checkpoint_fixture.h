#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/tests/support/message_of.h"

// Compares a checkpointed function with the same function called plainly, bit for bit.

namespace tessera::internal::testing {

using at::Tensor;

inline Tensor leaf(at::IntArrayRef sizes, double offset = 0.0) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return (at::arange(numel, at::kDouble).view(sizes) * 0.1 + offset)
      .detach()
      .set_requires_grad(true);
}

/// Returns the gradients that `loss` computes for `leaves`; undefined for those without one.
inline std::vector<Tensor> gradients(const std::function<Tensor()>& loss,
                                     std::vector<Tensor> leaves) {
  for (Tensor& tensor : leaves) tensor.mutable_grad() = Tensor();
  loss().backward();
  std::vector<Tensor> result;
  for (Tensor& tensor : leaves) result.push_back(std::exchange(tensor.mutable_grad(), Tensor()));
  return result;
}

inline void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << "gradient " << i;
    if (got[i].defined()) {
      EXPECT_TRUE(at::equal(got[i], expected[i])) << "gradient " << i;
    }
  }
}

/// Runs plainly what a checkpoint would run.
struct Plainly {
  template <typename Fn, typename... Inputs>
  auto operator()(Fn fn, Inputs... inputs) const {
    return internal::call_module_or_function(fn, inputs...);
  }
};
struct Checkpointed {
  template <typename Fn, typename... Inputs>
  auto operator()(Fn fn, Inputs... inputs) const {
    return checkpoint(fn, inputs...);
  }
};

/// Compares `loss(Checkpointed())` with `loss(Plainly())`.
template <typename Loss>
void expect_as_plain(const Loss& loss, const std::vector<Tensor>& leaves) {
  expect_equal(gradients([&] { return loss(Checkpointed()); }, leaves),
               gradients([&] { return loss(Plainly()); }, leaves));
}

}  // namespace tessera::internal::testing
