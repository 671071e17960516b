#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "tessera/tests/fsdp/access_fixture.h"

// Writes to split parameters. An operator that writes one is refused at once, by name, because the
// other ranks would not get the write; replacing a parameter's memory is refused by the next step.

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Write {
  std::string name;
  std::function<void(SplitRank&)> run;
};

std::ostream& operator<<(std::ostream& stream, const Write& write) { return stream << write.name; }
std::string write_name(const ::testing::TestParamInfo<Write>& info) { return info.param.name; }

std::vector<Write> writes() {
  return {
      {"Add", [](SplitRank& rank) { rank.model->first->weight.add_(1.0); }},
      {"AddItself",
       [](SplitRank& rank) { rank.model->first->weight.add_(rank.model->first->weight); }},
      {"ThroughAView", [](SplitRank& rank) { rank.model->first->weight[2].zero_(); }},
      {"ThroughATransposedView",
       [](SplitRank& rank) { rank.model->first->weight.t().narrow(0, 1, 2).mul_(2.0); }},
      {"ThroughData", [](SplitRank& rank) { rank.model->first->weight.data().mul_(2.0); }},
      {"ThroughDetach", [](SplitRank& rank) { rank.model->first->weight.detach().fill_(2.0); }},
      {"Copy",
       [](SplitRank& rank) {
         rank.model->first->weight.copy_(at::ones({7, 5}));
       }},
      {"Init",
       [](SplitRank& rank) { torch::nn::init::xavier_uniform_(rank.model->first->weight); }},
      {"Out",
       [](SplitRank& rank) {
         at::add_out(rank.model->first->weight, at::ones({7, 5}), at::ones({7, 5}));
       }},
      {"Foreach",
       [](SplitRank& rank) {
         std::vector<Tensor> list = {rank.model->first->bias};
         at::_foreach_mul_(list, 2.0);
       }},
      {"IndexPut",
       [](SplitRank& rank) {
         rank.model->first->weight.index_put_({torch::tensor({1})}, at::zeros({5}));
       }},
      {"RunningStatistics",  // batch_norm's schema does not declare this
       [](SplitRank& rank) {
         at::batch_norm(at::ones({2, 7}), {}, {}, rank.model->first->bias.detach(), at::ones({7}),
                        /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
       }},
      {"InsideAnOperatorWhoseSchemaOnlyReads",
       [](SplitRank& rank) {
         c10::Dispatcher::singleton()
             .findSchemaOrThrow("tessera_test_access::double_data", "")
             .typed<Tensor(const Tensor&)>()
             .call(rank.model->first->weight);
       }},
      {"Load",  // writes by set_()
       [](SplitRank& rank) {
         std::stringstream stream;
         torch::save(rank.plain->first, stream);
         torch::load(rank.model->first, stream);
       }},
      {"ForeignOptimizer",
       [](SplitRank& rank) {
         torch::optim::AdamW foreign({rank.model->first->weight},
                                     torch::optim::AdamWOptions(0.1).weight_decay(0.1));
         rank.model->first->weight.mutable_grad() = at::ones({7, 5});
         try {
           foreign.step();
         } catch (...) {
           rank.model->first->weight.mutable_grad().reset();
           throw;
         }
         rank.model->first->weight.mutable_grad().reset();
       }},
  };
}

class WriteTest : public ::testing::TestWithParam<Write> {};

TEST_P(WriteTest, IsRefusedByNameAndChangesNothing) {
  for (const auto& [size, configuration] : split_settings()) {
    for (const bool is_whole : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << configuration << " world " << size << " whole " << is_whole);
      on_split_ranks(size, configuration, [&, &split = configuration](SplitRank& rank) {
        const at::NoGradGuard no_grad;
        rank.free_first();
        Engine::Scope scope;
        if (is_whole) scope = rank.engine->gather(*rank.model->first);
        EXPECT_THAT([&] { GetParam().run(rank); },
                    ThrowsMessage<c10::Error>(AllOf(
                        HasSubstr("[fsdp] unit 'first'"), HasSubstr("writes"), HasSubstr("'first."),
                        HasSubstr("engine->modify_parameters()"), HasSubstr("register_buffer()"))));
        scope.reset();
        EXPECT_EQ(bit_differences(copy_parameters(*rank.model), copy_parameters(*rank.plain)), "");
        const at::AutoGradMode grad(true);
        const SplitRank untouched(rank.world, split);
        EXPECT_EQ(rank.train(0).grad_norm, untouched.train(0).grad_norm);
        EXPECT_EQ(parameter_hash(*rank.engine), parameter_hash(*untouched.engine));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, WriteTest, ::testing::ValuesIn(writes()), write_name);

/// The message recommends these writes inside modify_parameters(). Also the negative control: they
/// do change values.
TEST(WriteControl, IsTakenByAllRanksInsideModifyParameters) {
  for (const Write& write : writes()) {
    // There an optimizer has no gradients, and set_() would take the parameter out of its unit.
    if (write.name == "ForeignOptimizer" || write.name == "Load") continue;
    for (const auto& [size, configuration] : split_settings()) {
      SCOPED_TRACE(::testing::Message() << write << " " << configuration << " world " << size);
      on_split_ranks(size, configuration, [&](SplitRank& rank) {
        rank.train(0);
        const auto before = copy_parameters(*rank.model);
        const int from_rank = rank.world->size() - 1;
        rank.engine->modify_parameters(from_rank, [&] {
          if (rank.world->rank() == from_rank) write.run(rank);
        });
        EXPECT_NE(bit_differences(copy_parameters(*rank.model), before), "");
        EXPECT_TRUE(rank.train(1).committed);
        parameter_hash(*rank.engine);
      });
    }
  }
}

// --- What writes past the operators ---

/// A custom operator that writes its input through a raw pointer, which its schema does not
/// declare.
Tensor add_one_raw(const Tensor& input) {
  auto* const values = const_cast<float*>(input.const_data_ptr<float>());
  for (int64_t i = 0; i < input.numel(); ++i) values[i] += 1;
  return input.sum();
}
TORCH_LIBRARY(tessera_test_writes, library) {
  library.def("add_one_raw(Tensor input) -> Tensor", &add_one_raw);
}
void write_raw(const Tensor& tensor) {
  const at::NoGradGuard no_grad;
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("tessera_test_writes::add_one_raw", "")
      .typed<Tensor(const Tensor&)>()
      .call(tensor);
}

TEST(RawWrites, AreNamedByTheNextStepWithPoisonFreed) {
  const std::vector<std::pair<int, Configuration>> settings = {
      {1, hostile(configuration_of(Strategy::kZero3))},
      {3, hostile(apart(configuration_of(Strategy::kZero3)))}};
  for (const auto& [size, configuration] : settings) {
    on_split_ranks(size, configuration, [&](SplitRank& rank) {
      EXPECT_TRUE(rank.train(0).committed) << "the control";
      if (rank.world->rank() == 0) write_raw(rank.model->first->weight);
      EXPECT_THAT(
          [&] { rank.train(1); },
          ThrowsMessage<c10::Error>(AllOf(HasSubstr("parameter 'first.weight' was written outside"),
                                          HasSubstr("register_buffer()"))));
      rank.engine->zero_grad();
      rank.engine->modify_parameters(0, [] {});
      EXPECT_TRUE(rank.train(2).committed);
    });
  }
}

// --- What takes a parameter out of its unit ---

std::vector<Write> replacements() {
  return {
      {"ToDouble", [](SplitRank& rank) { rank.model->to(at::kDouble); }},
      {"VectorToParameters",
       [](SplitRank& rank) {
         torch::nn::utils::vector_to_parameters(
             torch::nn::utils::parameters_to_vector(rank.plain->parameters()),
             rank.model->parameters());
       }},
      {"SetData",
       [](SplitRank& rank) {
         rank.model->first->weight.set_data(rank.plain->first->weight.detach().clone());
       }},
  };
}

class ReplacementTest : public ::testing::TestWithParam<Write> {};

TEST_P(ReplacementTest, HasTheRightValuesAndIsRefusedByTheNextStep) {
  for (const auto& [size, configuration] : split_settings()) {
    SCOPED_TRACE(::testing::Message() << configuration << " world " << size);
    on_split_ranks(size, configuration, [&](SplitRank& rank) {
      {
        const at::NoGradGuard no_grad;
        GetParam().run(rank);
      }
      EXPECT_TRUE(at::allclose(rank.model->first->weight.to(at::kFloat), rank.plain->first->weight,
                               0.0, 0.0));
      const at::ScalarType dtype = rank.model->first->weight.scalar_type();
      EXPECT_THAT(
          [&] {
            rank.model->forward(rank.input(0).to(dtype)).sum().backward();
            rank.engine->step();
          },
          ThrowsMessage<c10::Error>(
              AllOf(HasSubstr("parameter '"),
                    HasSubstr("was re-assigned, converted or resized after parallelize"))));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, ReplacementTest, ::testing::ValuesIn(replacements()), write_name);

/// An operator of the model's own forward that writes its weight.
TEST(WriteControl, AnEmbeddingThatRenormalizesItsWeightIsRefused) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 7).max_norm(0.1)));
    Configuration configuration = configuration_of(Strategy::kZero3);
    const auto engine =
        parallelize(model, torch::optim::AdamWOptions(0.01), options_of(configuration), world);
    EXPECT_THAT(
        [&] {
          model->forward(torch::tensor({1, 2, 3}));
        },
        ThrowsMessage<c10::Error>(AllOf(HasSubstr("[fsdp] unit '0'"), HasSubstr("'0.weight'"),
                                        HasSubstr("engine->modify_parameters()"))));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
