#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/muon_plan.h"

// What parallelize() refuses, by name: with one text on every rank, even if only one rank has a
// reason.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// A rank's arguments of parallelize().
struct Arguments {
  std::shared_ptr<FaultNet> net = std::make_shared<FaultNet>();
  std::shared_ptr<torch::nn::Module> model = net;
  OptimizerPlan plan = adamw();
  Options options = small_options_of(configuration_of(Strategy::kZero2));
};

struct Refusal {
  std::string name;
  std::function<void(Arguments&)> spoil;
  Parts parts;
  int least_world = 1;  ///< smaller ones have nothing to split
};

struct ForeignHook : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable&) override {}
};

struct NobodysOptions : torch::optim::OptimizerCloneableOptions<NobodysOptions> {};

void add_parameter(Arguments& arguments, const at::Tensor& tensor, bool requires_grad = false) {
  arguments.net->register_parameter("odd", tensor, requires_grad);
}

std::vector<Refusal> refusals() {
  return {
      {"DegreesBesideAName",
       [](Arguments& a) {
         a.options.degrees = Degrees{1, 1, 1};
       },
       {"degrees: got 1,1,1 beside strategy zero2", "leave one of the two out"}},
      {"HybridWithoutDegrees",
       [](Arguments& a) { a.options.strategy = Strategy::kHybrid; },
       {"degrees: got none", "strategy hybrid needs them"}},
      {"DegreesThatDoNotDivide",
       [](Arguments& a) {
         a.options.strategy = Strategy::kHybrid;
         a.options.degrees = Degrees{2, 5, 5};
       },
       {"degrees: got 2,5,5 on a world of ", "each divides the next"}},
      {"ReshardWithoutSplit",
       [](Arguments& a) { a.options.reshard_after_forward = 1; },
       {"reshard_after_forward", "zero2"}},
      {"WrapWithoutSplit", [](Arguments& a) { a.options.wrap = wrap_layers(); }, {"wrap", "zero2"}},
      {"PrefetchWithoutSplit",
       [](Arguments& a) { a.options.prefetch = true; },
       {"prefetch", "zero2"}},
      {"FreeEagerlyWithoutSplit",
       [](Arguments& a) { a.options.free_eagerly = true; },
       {"free_eagerly", "zero2"}},
      {"FixedUnshardedBuffersWithoutSplit",
       [](Arguments& a) { a.options.fixed_unsharded_buffers = true; },
       {"fixed_unsharded_buffers", "zero2"}},
      {"ReshardThatDoesNotDivide",
       [](Arguments& a) {
         a.options = small_options_of(configuration_of(Strategy::kZero3));
         a.options.reshard_after_forward = 7;
       },
       {"reshard_after_forward: got 7", "expected a divisor"},
       2},
      {"NarrowMasters",
       [](Arguments& a) { a.options.precision.master = torch::kBFloat16; },
       {"precision.master: got BFloat16; allowed Float, Double", "leave it out"}},
      {"IntegersInCommunication",
       [](Arguments& a) { a.options.precision.communication = torch::kInt; },
       {"precision.communication: got Int; allowed Float, Double, BFloat16, Half"}},
      {"WrapThatChoosesNothingKnown",
       [](Arguments& a) {
         a.options = small_options_of(configuration_of(Strategy::kZero3));
         a.options.wrap.choose = [](const torch::nn::Module&) {
           return std::vector<std::vector<std::string>>{{"third"}};
         };
       },
       {"third"},
       2},
      {"WrapThatThrows",
       [](Arguments& a) {
         a.options = small_options_of(configuration_of(Strategy::kZero3));
         a.options.wrap.choose =
             [](const torch::nn::Module&) -> std::vector<std::vector<std::string>> {
           throw std::runtime_error("cannot wrap this");
         };
       },
       {"cannot wrap this"},
       2},
      {"Integer",
       [](Arguments& a) { add_parameter(a, torch::ones({2}, torch::kLong)); },
       {"parameter 'odd': got dtype Long", "register other tensors as buffers"}},
      {"Complex",
       [](Arguments& a) { add_parameter(a, torch::ones({2}, torch::kComplexFloat), true); },
       {"parameter 'odd': got dtype ComplexFloat", "register other tensors as buffers"}},
      {"SeveralDevices",
       [](Arguments& a) { add_parameter(a, torch::empty({2}, torch::kMeta), true); },
       {"devices: got parameters on", "meta ('odd')", "cpu ('scale')",
        "expected one device per engine"}},
      {"BufferElsewhere",
       [](Arguments& a) { a.net->register_buffer("odd", torch::empty({2}, torch::kMeta)); },
       {"buffer 'odd': got device meta", "one engine trains a model on one device"}},
      {"LazyBuffer",
       [](Arguments& a) {
         a.net->register_buffer("negated", at::_neg_view(torch::ones({2})));
         a.net->register_buffer("zero", at::_efficientzerotensor({2}, torch::kFloat));
       },
       {"buffer 'negated' cannot be read: its negation or conjugation is lazy; call resolve_neg()",
        "buffer 'zero' cannot be read: it is a lazy zero; call clone()"}},
      {"BufferWithoutMemory",
       [](Arguments& a) {
         const at::Tensor odd = torch::ones({2});
         odd.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
             "its engine is gone");
         a.net->register_buffer("odd", odd);
       },
       {"buffer 'odd' cannot be read: its engine is gone"}},
      {"ParameterWithoutMemory",
       [](Arguments& a) {
         const at::Tensor odd = torch::ones({2});
         odd.storage().unsafeGetStorageImpl()->release_resources();
         add_parameter(a, odd);
       },
       {"parameter 'odd' cannot be read: it has less memory than elements"}},
      {"PredicateOfNoKnownType",
       [](Arguments& a) { a.options.ignores = [](std::string_view) -> bool { throw 42; }; },
       {"[parallelize] ",
        ": [options] ignores threw for 'scale': an exception of unknown type; correct it"}},
      {"SparseBuffer",
       [](Arguments& a) { a.net->register_buffer("odd", torch::ones({2}).to_sparse()); },
       {"buffer 'odd': got a sparse tensor", "to_dense()"}},
      {"NestedBuffer",
       [](Arguments& a) {
         a.net->register_buffer(
             "odd", at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})}));
       },
       {"buffer 'odd' cannot be read: it is nested"}},
      {"Gradient",
       [](Arguments& a) { a.net->scale.mutable_grad() = torch::ones({}); },
       {"parameter 'scale' has a gradient already", "zero_grad()"}},
      {"ForeignHook",
       [](Arguments& a) {
         torch::autograd::impl::set_post_acc_grad_hooks(a.net->scale,
                                                        std::make_unique<ForeignHook>());
       },
       {"parameter 'scale' belongs to another engine or has a post-accumulate-gradient hook",
        "remove the hook first"}},
      {"Aliases",
       [](Arguments& a) {
         const at::Tensor weight = a.net->first->weight;
         add_parameter(a, weight.detach(), true);
       },
       {"parameters ", "'odd'", "'first.weight'", "overlapping memory", "under both names"}},
      {"NullModel", [](Arguments& a) { a.model = nullptr; }, {"model: got null", "pass the model"}},
      {"OptionsOutOfRange",
       [](Arguments& a) {
         a.options.max_grad_norm = -1.0;
         a.options.bucket_bytes = {1, int64_t{3} << 30};
       },
       {"max_grad_norm: got -1; allowed (0, infinity]", "bucket_bytes: got 1; allowed 1 KiB",
        "bucket_bytes: got 3221225472; allowed 1 KiB"}},
      {"NanNorm",
       [](Arguments& a) { a.options.max_grad_norm = std::nan(""); },
       {"max_grad_norm: got nan; allowed (0, infinity]"}},
      {"OptimizerOutOfRange",
       [](Arguments& a) {
         adamw_of(a.plan).lr(-1.0).eps(-2.0).betas({0.9, 1.0});
       },
       {"lr: got -1", "beta2: got 1, expected 0 <= beta2 < 1", "eps: got -2"}},
      {"OptimizerOfNobody",
       [](Arguments& a) { a.plan = NobodysOptions(); },
       {"defaults: got ", "NobodysOptions, expected AdamWOptions"}},
      {"MuonOverOtherThanMatrices",
       [](Arguments& a) { a.plan = MuonOptions(); },
       {"[optim] defaults: got parameter '", "expected dim() == 2, which Muon needs",
        "a predicate on parameter.dim() == 2"}},
      {"MuonInBackward",
       [](Arguments& a) {
         a.plan = muon_and(adamw(), MuonOptions());
         a.options.optimizer_in_backward = true;
       },
       {"optimizer_in_backward: is set beside Muon, whose updates depend on whole parameters",
        "leave it out"}},
      {"GroupWithoutParameters",
       [](Arguments& a) {
         a.plan.groups.push_back({"none", [](std::string_view) { return false; }, adamw()});
       },
       {"none"}},
      {"PredicateThrows",
       [](Arguments& a) {
         a.plan.groups.push_back({"broken",
                                  [](std::string_view name) -> bool {
                                    throw std::runtime_error("cannot choose " + std::string(name));
                                  },
                                  adamw()});
       },
       {"cannot choose "}},
      {"EverythingAtOnce",
       [](Arguments& a) {
         a.options.strategy = Strategy::kHybrid;
         a.options.bucket_bytes = {1};
         adamw_of(a.plan).lr(-1.0);
         a.net->scale.mutable_grad() = torch::ones({});
         a.net->register_buffer("odd", torch::empty({2}, torch::kMeta));
       },
       {"degrees: got none", "bucket_bytes: got 1", "lr: got -1",
        "parameter 'scale' has a gradient", "buffer 'odd': got device meta"}},
  };
}

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, ByNameOnEveryRank) {
  for (const int size : {1, 2, 3}) {
    if (size < GetParam().least_world) continue;
    for (const Who who : kAnyone) {
      SCOPED_TRACE(::testing::Message() << "world " << size << ", " << who);
      const auto outcomes =
          outcomes_of_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
            Arguments arguments;
            if (is_among(who, *world)) GetParam().spoil(arguments);
            parallelize(arguments.model, arguments.plan, arguments.options, world);
          });
      Parts parts = GetParam().parts;
      parts.push_back("[parallelize] " + refusers(who, size) + ": ");
      EXPECT_THAT(outcomes, every_rank_refuses(parts));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Refused, ::testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

// Negative control of the above: a refusal leaves nothing behind.
TEST(Refusals, LeaveTheWorldAndTheModelUsable) {
  const auto outcomes = outcomes_of_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    Arguments arguments;
    Options refused = arguments.options;
    if (world->rank() == 1) refused.bucket_bytes = {1};
    EXPECT_THAT(outcome_of([&] { parallelize(arguments.model, arguments.plan, refused, world); }),
                is_misuse("bucket_bytes"));
    const auto engine = parallelize(arguments.model, arguments.plan, arguments.options, world);
    arguments.net->forward(torch::ones({2, 11})).sum().backward();
    EXPECT_TRUE(engine->step().committed);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST(Refusals, NullWorld) {
  const Ending outcome =
      outcome_of([] { parallelize(std::make_shared<FaultNet>(), adamw(), Options(), nullptr); });
  EXPECT_THAT(outcome, is_misuse("[parallelize] world: got null, expected a process group"));
}

TEST(Refusals, ModelOwnedByAnotherEngine) {
  for (const int size : {1, 2, 3}) {
    const auto outcomes = outcomes_of_ranks(size, [](const std::shared_ptr<ProcessGroup>& world) {
      const auto net = std::make_shared<FaultNet>();
      const auto engine =
          parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kDdp)), world);
      parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"parameter 'scale' belongs to another engine",
                                              "destroy that engine"}));
  }
}

TEST(Refusals, ViewsAndAliasesOfWhatAnotherEngineTrains) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const auto outcomes = outcomes_of_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const auto net = std::make_shared<FaultNet>();
      auto engine = parallelize(net, adamw(), small_options_of(configuration_of(strategy)), world);
      const auto parallelize_other = [&] {
        const auto other = std::make_shared<FaultNet>();
        other->register_parameter("mirror", net->scale.detach());
        other->register_buffer("rows", net->second->weight.detach().narrow(0, 1, 3));
        parallelize(other, adamw(), small_options_of(configuration_of(Strategy::kDdp)), world);
      };
      EXPECT_THAT(outcome_of(parallelize_other),
                  is_misuse("parameter 'mirror' is a parameter of another engine, or a view or "
                            "alias of one; destroy that engine or clone() it first"));
      EXPECT_THAT(outcome_of(parallelize_other),
                  is_misuse("buffer 'rows' is a parameter of another engine"));
      net->forward(torch::ones({2, 11})).sum().backward();
      EXPECT_TRUE(engine->step().committed) << "the engine that has it goes on";
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST(Refusals, ModelIsFreeWhenItsEngineIsGone) {
  const auto outcomes = outcomes_of_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto net = std::make_shared<FaultNet>();
    parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kDdp)), world).reset();
    const auto engine =
        parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
    net->forward(torch::ones({2, 11})).sum().backward();
    EXPECT_TRUE(engine->step().committed);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST(Refusals, UnknownStrategy) {
  const auto unknown = parse_strategy("zero9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("[strategy] name: got \"zero9\", expected one of ddp, zero1, zero2, zero3 "
                        "(or fsdp)"));
}

// Buffers of a dtype that no collective supports are accepted.
TEST(Refusals, NotForUnusualBuffers) {
  const auto outcomes = outcomes_of_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const auto net = std::make_shared<FaultNet>();
    const auto fill = [&](at::ScalarType dtype) {
      return torch::full({3}, world->rank() == 0 ? 1 : 0, torch::TensorOptions(dtype));
    };
    net->register_buffer("flags", fill(torch::kBool));
    net->register_buffer("short", fill(torch::kShort));
    net->register_buffer("complex", fill(torch::kComplexDouble));
    net->register_buffer("strided", torch::full({4, 4}, world->rank()).t().slice(0, 0, 3));
    const auto engine =
        parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
    for (const auto& buffer : net->named_buffers()) {
      const double expected = buffer.key() == "strided" ? 0 : 1;
      EXPECT_TRUE(
          torch::all(buffer.value() == torch::full({1}, expected).to(buffer.value().dtype()))
              .item<bool>())
          << buffer.key() << " on rank " << world->rank();
    }
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
