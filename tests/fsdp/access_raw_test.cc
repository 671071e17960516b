#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/library.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "tessera/core/access/access_key.h"
#include "tessera/tests/fsdp/access_fixture.h"

// Every access to a split parameter other than by an operator of the model's forward: it gives the
// whole parameter's values, or throws and names the unit. None ends in a signal; these ranks are
// threads, so a signal would end the test program.

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Access {
  std::string name;
  std::function<void(SplitRank&)> run;  ///< called with "first" freed; has its own expectations
};

std::ostream& operator<<(std::ostream& stream, const Access& access) {
  return stream << access.name;
}

std::string text_of(const Tensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

/// Reads raw memory and calls no operator.
struct RawSum : torch::autograd::Function<RawSum> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& weight) {
    const float* values = weight.const_data_ptr<float>();
    double sum = 0;
    for (int64_t i = 0; i < weight.numel(); ++i) sum += values[i];
    return at::scalar_tensor(sum);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    return {Tensor()};
  }
};

double raw_sum(const Tensor& weight) {
  const at::NoGradGuard no_grad;
  return RawSum::apply(weight).item<double>();
}

/// Custom operators. LibTorch looks for dispatch keys only among their arguments that are tensors
/// or lists of tensors.
using Weights = c10::Dict<std::string, Tensor>;
Tensor sum_of_dict(const Tensor& input, const Weights& weights) {
  Tensor sum = input.sum();
  for (const auto& entry : weights) sum = sum + entry.value().sum();
  return sum;
}
Tensor gradient_of(const Tensor& result, const Tensor& weight) {
  return torch::autograd::grad({result}, {weight})[0];
}
Tensor double_data(const Tensor& weight) {
  weight.data().mul_(2);  // the schema does not declare it
  return weight.sum();
}
TORCH_LIBRARY(tessera_test_access, library) {
  library.def("sum_of_dict(Tensor input, Dict(str, Tensor) weights) -> Tensor", &sum_of_dict);
  library.def("gradient_of(Tensor result, Tensor weight) -> Tensor", &gradient_of);
  library.def("double_data(Tensor weight) -> Tensor", &double_data);
}
template <typename Function, typename... Arguments>
Tensor call(const char* name, const Arguments&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>().call(
      arguments...);
}

torch::jit::Module scripted_from(const TwoLayers& model) {
  torch::jit::Module module("scripted");
  module.register_parameter("weight", model.first->weight, /*is_buffer=*/false);
  module.register_parameter("bias", model.first->bias, /*is_buffer=*/false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(R"(
    def forward(self, x):
        return torch.tanh(x.matmul(self.weight.t()) + self.bias)
  )");
  return module;
}

// --- Right ---

void expect_same(const Tensor& got, const Tensor& expected) {
  EXPECT_TRUE(at::equal(got, expected));
}

std::vector<Access> right_accesses() {
  return {
      {"Sum",
       [](SplitRank& rank) {
         EXPECT_EQ(rank.model->first->weight.sum().item<float>(),
                   rank.plain->first->weight.sum().item<float>());
       }},
      {"Item",
       [](SplitRank& rank) {
         EXPECT_EQ(rank.model->first->weight[1][2].item<float>(),
                   rank.plain->first->weight[1][2].item<float>());
       }},
      {"Print",
       [](SplitRank& rank) {
         EXPECT_EQ(text_of(rank.model->first->weight), text_of(rank.plain->first->weight));
       }},
      {"KeptView",
       [](SplitRank& rank) {
         const Tensor view = rank.model->first->weight.t().narrow(0, 1, 3);
         rank.free_first();
         expect_same(view.clone(), rank.plain->first->weight.t().narrow(0, 1, 3));
       }},
      {"Convert",
       [](SplitRank& rank) {
         expect_same(rank.model->first->weight.to(at::kDouble),
                     rank.plain->first->weight.to(at::kDouble));
       }},
      {"CloneOfAModule",
       [](SplitRank& rank) {
         const auto copy =
             std::dynamic_pointer_cast<torch::nn::LinearImpl>(rank.model->first->clone());
         rank.free_first();
         expect_same(copy->weight, rank.plain->first->weight);
         // It owns ordinary memory, which stays.
         EXPECT_EQ(*copy->weight.const_data_ptr<float>(),
                   *rank.plain->first->weight.const_data_ptr<float>());
       }},
      {"ParametersToVector",
       [](SplitRank& rank) {
         expect_same(torch::nn::utils::parameters_to_vector(rank.model->parameters()),
                     torch::nn::utils::parameters_to_vector(rank.plain->parameters()));
       }},
      {"SaveOfACopy",
       [](SplitRank& rank) {
         std::stringstream stream;
         torch::save(rank.model->first->weight.detach().clone(), stream);
         Tensor loaded;
         torch::load(loaded, stream);
         expect_same(loaded, rank.plain->first->weight);
       }},
      {"InferenceMode",
       [](SplitRank& rank) {
         const c10::InferenceMode inference;
         expect_same(rank.model->forward(rank.input(0)), rank.plain->forward(rank.input(0)));
       }},
      {"ParallelFor",
       [](SplitRank& rank) {
         std::vector<float> sums(8);
         at::set_num_threads(2);
         at::parallel_for(0, 8, 1, [&](int64_t begin, int64_t end) {
           const at::NoGradGuard no_grad;
           for (int64_t i = begin; i < end; ++i) {
             const auto& layer = i % 2 == 0 ? rank.model->first : rank.model->second;
             sums[static_cast<size_t>(i)] = layer->weight.sum().item<float>();
           }
         });
         at::set_num_threads(1);
         for (size_t i = 0; i < sums.size(); ++i) {
           const auto& layer = i % 2 == 0 ? rank.plain->first : rank.plain->second;
           EXPECT_EQ(sums[i], layer->weight.sum().item<float>());
         }
       }},
      {"SeveralThreads",
       [](SplitRank& rank) {
         const float first = rank.plain->first->weight.sum().item<float>();
         const float second = rank.plain->second->weight.sum().item<float>();
         std::vector<std::thread> threads;
         for (int number = 0; number < 3; ++number) {
           threads.emplace_back([&, number] {
             const at::NoGradGuard no_grad;
             for (int i = 0; i < 100; ++i) {
               const bool takes_first = (i + number) % 2 == 0;
               const auto& layer = takes_first ? rank.model->first : rank.model->second;
               EXPECT_EQ(layer->weight.sum().item<float>(), takes_first ? first : second);
             }
           });
         }
         for (std::thread& thread : threads) thread.join();
       }},
      {"AutogradGrad",
       [](SplitRank& rank) {
         const auto gradients = [&](TwoLayers& model) {
           return torch::autograd::grad({model.forward(rank.input(0)).sum()},
                                        {model.first->weight, model.second->bias});
         };
         const auto got = gradients(*rank.model);
         const auto expected = gradients(*rank.plain);
         for (size_t i = 0; i < got.size(); ++i) expect_same(got[i], expected[i]);
       }},
      {"DoubleBackward",
       [](SplitRank& rank) {
         const auto second_order = [&](TwoLayers& model) {
           const Tensor input = rank.input(0).requires_grad_();
           const Tensor first = torch::autograd::grad({model.forward(input).sum()}, {input}, {},
                                                      /*retain_graph=*/true,
                                                      /*create_graph=*/true)[0];
           return torch::autograd::grad({first.square().sum()}, {model.first->weight})[0];
         };
         expect_same(second_order(*rank.model), second_order(*rank.plain));
       }},
      {"InputGradientOnly",
       [](SplitRank& rank) {
         const auto gradient = [&](TwoLayers& model) {
           const Tensor input = rank.input(0).requires_grad_();
           model.forward(input).sum().backward({}, /*retain_graph=*/false, /*create_graph=*/false,
                                               std::vector<Tensor>{input});
           return input.grad();
         };
         expect_same(gradient(*rank.model), gradient(*rank.plain));
       }},
      {"TorchScript",
       [](SplitRank& rank) {
         torch::jit::Module module = scripted_from(*rank.model);
         torch::jit::Module plain = scripted_from(*rank.plain);
         for (int call = 0; call < 4; ++call) {
           rank.free_first();
           expect_same(module.forward({rank.input(call)}).toTensor(),
                       plain.forward({rank.input(call)}).toTensor());
         }
       }},
      {"WithoutRecordFunctions",
       [](SplitRank& rank) {
         const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
         expect_same(rank.model->first->weight.clone(), rank.plain->first->weight);
       }},
      {"OperatorWithAnotherParameterInADict",
       [](SplitRank& rank) {
         const auto sum = [](const TwoLayers& model) {
           Weights weights;
           weights.insert("weight", model.first->weight);
           return call<decltype(sum_of_dict)>("tessera_test_access::sum_of_dict",
                                              model.second->weight, weights);
         };
         expect_same(sum(*rank.model), sum(*rank.plain));
       }},
      {"BackwardInsideAnOperator",
       [](SplitRank& rank) {
         const auto gradient = [&](TwoLayers& model) {
           return call<decltype(gradient_of)>("tessera_test_access::gradient_of",
                                              model.forward(rank.input(0)).sum(),
                                              model.second->weight);
         };
         expect_same(gradient(*rank.model), gradient(*rank.plain));
       }},
      {"FrozenTorchScript",
       [](SplitRank& rank) {
         torch::jit::Module module = scripted_from(*rank.model);
         module.eval();
         const torch::jit::Module frozen = torch::jit::freeze(module);
         torch::jit::Module plain = scripted_from(*rank.plain);
         for (int call = 0; call < 4; ++call) {
           rank.free_first();
           torch::jit::Module callable = frozen;
           const at::NoGradGuard no_grad;
           expect_same(callable.forward({rank.input(call)}).toTensor(),
                       plain.forward({rank.input(call)}).toTensor());
         }
       }},
      {"RawPointersInsideGather",
       [](SplitRank& rank) {
         const auto scope = rank.engine->gather(*rank.model->first);
         rank.free_first();
         EXPECT_EQ(raw_sum(rank.model->first->weight), raw_sum(rank.plain->first->weight));
         const auto values = rank.model->first->weight.accessor<float, 2>();
         EXPECT_EQ(values[1][2], rank.plain->first->weight[1][2].item<float>());
         // An operator that is not observed finds it too.
         const c10::impl::ExcludeDispatchKeyGuard unseen(kAccessKey);
         expect_same(rank.model->first->weight.clone(), rank.plain->first->weight);
       }},
      {"SaveInsideFullParameters",
       [](SplitRank& rank) {
         std::stringstream stream;
         {
           const auto scope = rank.engine->full_parameters();
           torch::save(rank.model, stream);
         }
         auto loaded = std::make_shared<TwoLayers>();
         torch::load(loaded, stream);
         EXPECT_EQ(bit_differences(copy_parameters(*loaded), copy_parameters(*rank.plain)), "");
       }},
  };
}

// --- Refused ---

std::vector<Access> refused_accesses() {
  const auto refuses = [](std::string name, std::function<void(SplitRank&)> read) {
    return Access{std::move(name), [read](SplitRank& rank) {
                    EXPECT_THAT([&] { read(rank); }, names_unit("first"));
                  }};
  };
  return {
      refuses("TypedPointer", [](SplitRank& rank) { rank.model->first->weight.data_ptr<float>(); }),
      refuses("ConstPointer",
              [](SplitRank& rank) { rank.model->first->weight.const_data_ptr<float>(); }),
      refuses("UntypedPointer", [](SplitRank& rank) { rank.model->first->weight.data_ptr(); }),
      refuses("UntypedConstPointer",
              [](SplitRank& rank) { rank.model->first->weight.const_data_ptr(); }),
      refuses("PointerOfAView",
              [](SplitRank& rank) { rank.model->first->weight[1].data_ptr<float>(); }),
      refuses("PointerOfData",
              [](SplitRank& rank) { rank.model->first->weight.data().data_ptr<float>(); }),
      refuses("Accessor",
              [](SplitRank& rank) { rank.model->first->weight.accessor<float, 2>()[1][2] += 1; }),
      refuses("StorageData", [](SplitRank& rank) { rank.model->first->weight.storage().data(); }),
      refuses("StorageMutableData",
              [](SplitRank& rank) { rank.model->first->weight.storage().mutable_data(); }),
      refuses("SaveOfATensor",
              [](SplitRank& rank) {
                std::stringstream stream;
                torch::save(rank.model->first->weight, stream);
              }),
      refuses("SaveOfAModule",
              [](SplitRank& rank) {
                std::stringstream stream;
                torch::save(rank.model->first, stream);
              }),
      refuses("CustomFunction", [](SplitRank& rank) { raw_sum(rank.model->first->weight); }),
      refuses("TensorMadeOfTheStorage",
              [](SplitRank& rank) {
                const Tensor& weight = rank.model->first->weight;
                at::empty({0}).set_(weight.storage(), 0, weight.sizes(), weight.strides()).sum();
              }),
  };
}

class AccessTest : public ::testing::TestWithParam<Access> {};

TEST_P(AccessTest, EndsRightOrNamesTheUnitAndLeavesTrainingAsItWas) {
  for (const auto& [size, configuration] : split_settings()) {
    SCOPED_TRACE(::testing::Message() << configuration << " world " << size);
    on_split_ranks(size, configuration, [&, &split = configuration](SplitRank& rank) {
      rank.free_first();
      GetParam().run(rank);
      // The refused access had no effect.
      const SplitRank untouched(rank.world, split);
      for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(rank.train(step).grad_norm, untouched.train(step).grad_norm);
      }
      EXPECT_EQ(parameter_hash(*rank.engine), parameter_hash(*untouched.engine));
    });
  }
}

std::string access_name(const ::testing::TestParamInfo<Access>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Right, AccessTest, ::testing::ValuesIn(right_accesses()), access_name);
INSTANTIATE_TEST_SUITE_P(Refused, AccessTest, ::testing::ValuesIn(refused_accesses()), access_name);

// --- After the engine ---

TEST(AccessControl, ParametersThatOutliveTheEngineSayWhereTheirValuesAre) {
  for (const auto& [size, configuration] : split_settings()) {
    on_split_ranks(size, configuration, [](SplitRank& rank) {
      rank.train(0);
      rank.engine.reset();
      EXPECT_THAT(
          [&] { rank.model->first->weight.sum(); },
          ThrowsMessage<c10::Error>(AllOf(HasSubstr("[fsdp] unit 'first'"), HasSubstr("the engine"),
                                          HasSubstr("engine->full_parameters()"))));
      EXPECT_EQ(rank.model->first->weight.sizes(), rank.plain->first->weight.sizes());
    });
  }
}

/// One rank, because callbacks belong to the process.
TEST(AccessControl, NeedsNoCallbackForOperatorsOfForward) {
  const auto configuration = hostile(configuration_of(Strategy::kZero3));
  const auto has_callback = [] {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  };
  on_split_ranks(1, configuration, [&](SplitRank& rank) {
    EXPECT_FALSE(has_callback());
    rank.free_first();
    at::enableRecordFunction(false);
    EXPECT_NO_THROW(rank.model->first->weight.sum());
    at::enableRecordFunction(true);
    rank.free_first();
    at::clearCallbacks();
    EXPECT_NO_THROW(rank.model->first->weight.sum());
  });
}

/// An alias from before parallelize carries no key, so it is seen by a callback, which is on until
/// the engine ends.
TEST(AccessControl, CallsBackForOperatorsWhileAnAliasIsOlderThanTheEngine) {
  const auto has_callback = [] {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  };
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<TwoLayers>();
    const Tensor alias = model->first->weight.t();
    const Tensor expected = alias.clone();
    {
      const auto engine =
          parallelize(model, torch::optim::AdamWOptions(0.02),
                      options_of(hostile(configuration_of(Strategy::kZero3))), world);
      EXPECT_TRUE(has_callback());
      const at::NoGradGuard no_grad;
      (model->second->weight.sum() + model->second->bias.sum()).item<float>();
      expect_same(alias.clone(), expected);
    }
    EXPECT_FALSE(has_callback());
  });
}

/// Reading metadata is not an access.
TEST(AccessControl, SizesAndTheLikeNeedNoGather) {
  on_split_ranks(3, apart(configuration_of(Strategy::kZero3)), [](SplitRank& rank) {
    const int64_t before = rank.engine->gather_counts().gathers;
    const Tensor& weight = rank.model->first->weight;
    const auto expect_no_gather = [&](const char* what) {
      EXPECT_EQ(rank.engine->gather_counts().gathers, before) << what;
    };
    EXPECT_EQ(weight.numel(), 35);
    EXPECT_TRUE(weight.is_contiguous() && weight.requires_grad() && weight.is_leaf());
    expect_no_gather("metadata");
    EXPECT_EQ(weight.t().sizes(), at::IntArrayRef({5, 7}));
    expect_no_gather("t");
    EXPECT_EQ(weight.view({7, 5}).dim(), 2);
    expect_no_gather("view");
    EXPECT_EQ(weight.unsqueeze(0).dim(), 3);
    expect_no_gather("unsqueeze");
    EXPECT_EQ(weight.detach().dim(), 2);
    expect_no_gather("detach");
  });
}

}  // namespace
}  // namespace tessera::internal::testing
