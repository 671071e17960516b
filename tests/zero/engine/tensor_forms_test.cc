// Tensors whose memory differs from the values that operators see. Wherever the engine takes
// tensors from outside, it takes their values or refuses them by name.
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm_hook.h"
#include "tessera/engine.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

const std::vector<int64_t> kFormSizes = {8, 16};  // fills a buffer

Tensor form_numbers() { return at::arange(128, at::kFloat).reshape(kFormSizes) - 40; }

/// A tensor in some form, and the values that operators see.
struct TensorForm {
  std::string name;
  std::function<Tensor()> make;
  Tensor values;
};
std::ostream& operator<<(std::ostream& stream, const TensorForm& form) {
  return stream << form.name;
}

std::vector<TensorForm> forms() {
  const Tensor rows = at::tensor({0, 2, 0, 1, 4, 5, 6, 7}, at::kLong).unsqueeze(0);
  const Tensor sparse = at::sparse_coo_tensor(rows, form_numbers(), kFormSizes);
  return {
      {"Plain", [] { return form_numbers(); }, form_numbers()},
      {"Negated", [] { return at::_neg_view(-form_numbers()); }, form_numbers()},
      {"NegatedAndTransposed", [] { return at::_neg_view(-form_numbers().t().contiguous()).t(); },
       form_numbers()},
      {"ImaginaryOfAConjugate",
       [] { return at::imag(at::conj(at::complex(at::zeros(kFormSizes), -form_numbers()))); },
       form_numbers()},
      {"LazyZero", [] { return at::_efficientzerotensor(kFormSizes, at::kFloat); },
       at::zeros(kFormSizes)},
      {"Transposed", [] { return form_numbers().t().contiguous().t(); }, form_numbers()},
      {"Expanded",
       [] {
         return at::full({1, 1}, 2.5f).expand(kFormSizes);
       },
       at::full(kFormSizes, 2.5f)},
      {"WithGaps",
       [] {
         return at::cat({form_numbers(), form_numbers()}, 1).narrow(1, 16, 16);
       },
       form_numbers()},
      {"Sparse", [rows] { return at::sparse_coo_tensor(rows, form_numbers(), kFormSizes); },
       sparse.to_dense()},
      {"SparseElements", [] { return form_numbers().to_sparse(); }, form_numbers()},
      {"SparseOfNegated",
       [rows] {
         return at::_sparse_coo_tensor_unsafe(rows, at::_neg_view(-form_numbers()), kFormSizes);
       },
       sparse.to_dense()},
      {"SparseOfLazyZeros",
       [rows] {
         return at::_sparse_coo_tensor_unsafe(
             rows, at::_efficientzerotensor(kFormSizes, at::kFloat), kFormSizes);
       },
       at::zeros(kFormSizes)},
  };
}

struct OneWeightNet : torch::nn::Module {
  OneWeightNet() { weight = register_parameter("weight", at::ones(kFormSizes)); }
  Tensor weight;
};

/// In backward, gives its input the gradient that it was made with.
struct GiveGradient : torch::autograd::Function<GiveGradient> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        std::function<Tensor()>* make) {
    context->saved_data["make"] = reinterpret_cast<int64_t>(make);
    return input.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    auto* const make =
        reinterpret_cast<std::function<Tensor()>*>(context->saved_data["make"].toInt());
    return {(*make)(), Tensor()};
  }
};

/// A rank that updates weight -= gradient.
struct OneWeight {
  OneWeight(const std::shared_ptr<ProcessGroup>& world, Strategy strategy)
      : engine(parallelize(net, torch::optim::SGDOptions(1.0), options_of(strategy), world)) {}
  static Options options_of(Strategy strategy) {
    Options options;
    options.strategy = strategy;
    return options;
  }
  Tensor updated() const {
    engine->step();
    const auto scope = engine->full_parameters();
    return net->weight.detach().clone();
  }
  std::shared_ptr<OneWeightNet> net = std::make_shared<OneWeightNet>();
  std::unique_ptr<Engine> engine;
};

class TensorForms : public ::testing::TestWithParam<TensorForm> {
 protected:
  static constexpr Strategy kStrategies[] = {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3};

  /// `give` gives the engine the form as the gradient of one step, or adds it to another gradient.
  void expect_taken(const std::function<void(OneWeight&, const TensorForm&)>& give,
                    bool is_second) {
    for (const Strategy strategy : kStrategies) {
      for (const int world : {1, 3}) {
        run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
          OneWeight rank(group, strategy);
          if (is_second) (rank.net->weight * 2).sum().backward();
          give(rank, GetParam());
          const Tensor expected = at::ones(kFormSizes) - (is_second ? 2 : 0) - GetParam().values;
          const Tensor got = rank.updated();
          EXPECT_TRUE(at::equal(got, expected)) << to_string(strategy) << "\n" << got << expected;
        });
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, TensorForms, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TensorForms, AreTakenFromAutograd) {
  const auto give = [](OneWeight& rank, const TensorForm& form) {
    std::function<Tensor()> make = form.make;
    GiveGradient::apply(rank.net->weight, &make).backward();
  };
  expect_taken(give, /*is_second=*/false);
  expect_taken(give, /*is_second=*/true);
}

/// If a function returns no gradient, there is none, as in LibTorch.
TEST(TensorFormsOfNone, AGradientThatAFunctionLeavesOutIsNone) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3}) {
    for (const bool is_on_one_rank : {false, true}) {
      for (const float other : {0.0f, 3.0f}) {  // the gradient of another backward before
        run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
          const bool gives = is_on_one_rank && group->rank() != 1;
          OneWeight rank(group, strategy);
          if (other != 0) (rank.net->weight * other).sum().backward();
          std::function<Tensor()> make = [gives] {
            return gives ? at::full(kFormSizes, 3.0f) : Tensor();
          };
          GiveGradient::apply(rank.net->weight, &make).backward();
          const float mean = is_on_one_rank ? 2 : 0;
          EXPECT_TRUE(at::equal(rank.updated(), at::full(kFormSizes, 1 - other - mean)));
        });
      }
    }
  }
}

TEST_P(TensorForms, AreTakenByAccumulate) {
  const auto give = [](OneWeight& rank, const TensorForm& form) {
    rank.engine->accumulate({{"weight", form.make()}});
  };
  expect_taken(give, /*is_second=*/false);
  expect_taken(give, /*is_second=*/true);
}

/// Returns the form instead of the bucket.
class FormHook : public CommHook {
 public:
  explicit FormHook(const TensorForm& form) : form_(form) {}
  std::string name() const override { return "form"; }
  Tensor run(const GradBucket&, ProcessGroup&) override { return form_.make(); }

 private:
  const TensorForm& form_;
};

TEST_P(TensorForms, AreTakenFromCommunicationHooks) {
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    OneWeight rank(group, Strategy::kDdp);
    rank.engine->register_comm_hook(std::make_shared<FormHook>(GetParam()));
    const Tensor loss = rank.net->weight.sum();
    if (GetParam().make().is_sparse()) {
      EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("returned a sparse tensor"));
      return;
    }
    loss.backward();
    EXPECT_TRUE(at::equal(rank.updated(), at::ones(kFormSizes) - GetParam().values));
  });
}

/// Returns its own buffer as another view.
class BufferHook : public CommHook {
 public:
  std::string name() const override { return "buffer"; }
  Tensor run(const GradBucket& bucket, ProcessGroup&) override {
    return at::_neg_view(bucket.buffer);
  }
};

TEST(TensorFormsOfHooks, ABufferThatIsNegatedLazilyIsNegated) {
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    OneWeight rank(group, Strategy::kDdp);
    rank.engine->register_comm_hook(std::make_shared<BufferHook>());
    rank.net->weight.sum().backward();
    EXPECT_TRUE(at::equal(rank.updated(), at::full(kFormSizes, 2.0f)));
  });
}

TEST_P(TensorForms, AreTakenOrRefusedByCollectives) {
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const Tensor tensor = GetParam().make();
    const bool is_plain = tensor.layout() == at::kStrided && tensor.is_contiguous() &&
                          !tensor.is_neg() && !tensor._is_zerotensor();
    Tensor whole = at::zeros({16, 16});
    const std::string said = message_of([&] { group->all_gather(whole, tensor)->wait(); });
    if (is_plain) {
      EXPECT_EQ(said, "nothing was thrown");
      EXPECT_TRUE(at::equal(whole, at::cat({GetParam().values, GetParam().values})));
    } else {
      EXPECT_THAT(said, HasSubstr("[comm] all_gather: got "));
      EXPECT_TRUE(at::equal(whole, at::zeros({16, 16})));
    }
  });
}

/// LibTorch adds sparse elements at the wrong place of a view with an offset.
TEST(TensorFormsOfSeveral, SparseElementsComeToTheirOwnParameter) {
  struct Three : torch::nn::Module {
    Tensor x = register_parameter("x", at::zeros({1}));
    Tensor y = register_parameter("y", at::zeros({3, 2}));
    Tensor z = register_parameter("z", at::zeros({130}));
  };
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
      const auto net = std::make_shared<Three>();
      const auto engine =
          parallelize(net, torch::optim::SGDOptions(1.0), OneWeight::options_of(strategy), group);
      std::vector<NamedTensor> gradients;
      for (const Parameter& parameter : engine->parameters()) {
        gradients.push_back({parameter.name, at::full(parameter.tensor.sizes(), 2.0f).to_sparse()});
      }
      engine->accumulate(gradients);
      engine->step();
      const auto scope = engine->full_parameters();
      for (const Tensor& tensor : {net->x, net->y, net->z}) {
        EXPECT_TRUE(at::equal(tensor, at::full(tensor.sizes(), -2.0f))) << tensor;
      }
    });
  }
}

TEST(TensorFormsControl, AFormWhoseBytesAreOthersIsThere) {
  const Tensor negated = at::_neg_view(-form_numbers());
  EXPECT_TRUE(at::equal(negated, form_numbers()));
  EXPECT_NE(negated.const_data_ptr<float>()[0], form_numbers().const_data_ptr<float>()[0]);
}

}  // namespace
}  // namespace tessera::internal::testing
