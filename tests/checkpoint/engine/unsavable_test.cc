// What no checkpoint can hold is refused when it is handed over, not by the first save.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoints.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct ExtendedNet : torch::nn::Module {
  explicit ExtendedNet(const std::function<void(ExtendedNet&)>& add) {
    register_module("fc", torch::nn::Linear(3, 1));
    if (add) add(*this);
  }
  void buffer(const std::string& name, const at::Tensor& tensor) { register_buffer(name, tensor); }
};

struct UnsavableCase {
  std::string name;
  std::function<void(ExtendedNet&)> add;
  std::string says;
};
std::ostream& operator<<(std::ostream& stream, const UnsavableCase& each) {
  return stream << each.name;
}

std::vector<UnsavableCase> unsavable_cases() {
  const auto with = [](const std::string& name, const std::function<at::Tensor()>& make) {
    return [name, make](ExtendedNet& net) { net.buffer(name, make()); };
  };
  const auto zeros = [](at::ScalarType dtype) {
    return [dtype] { return torch::zeros({8}, dtype); };
  };
  return {
      {"Complex", with("window", zeros(at::kComplexDouble)), "'model.window'"},
      {"ComplexHalf", with("window", zeros(at::kComplexHalf)), "'model.window'"},
      {"Bits", with("window", [] { return torch::empty({8}, at::kBits8); }), "'model.window'"},
      {"Quantized",
       with("window",
            [] { return torch::quantize_per_tensor(torch::zeros({8}), 0.1, 0, torch::kQInt8); }),
       "'model.window'"},
      {"ControlCharacter", with("win\ndow", zeros(at::kFloat)), "win\\ndow"},
      {"NoUtf8", with("win\xff", zeros(at::kFloat)), "'model.win"},
      {"LikeAPiece", with("win#1-2", zeros(at::kFloat)), "'model.win#1-2'"},
      {"NameOfAParameter",
       [](ExtendedNet& net) { net.register_parameter("w\x01", torch::zeros({3})); },
       "'model.w\\x01'"},
  };
}

class Unsavable : public ::testing::TestWithParam<UnsavableCase> {};
INSTANTIATE_TEST_SUITE_P(State, Unsavable, ::testing::ValuesIn(unsavable_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Unsavable, IsNamedByTheConstructorOnAllRanks) {
  const TemporaryDirectory directory;
  const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> group) {
    const auto engine = parallelize(std::make_shared<ExtendedNet>(GetParam().add),
                                    torch::optim::SGDOptions(0.1), {}, group);
    const Checkpoints checkpoints(*engine, directory.path());
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(GetParam().says), HasSubstr("cannot be saved"),
                                 HasSubstr("ignores_buffers"))));
}

void with_checkpoints(const CheckpointsOptions& options,
                      const std::function<void(Checkpoints&)>& body) {
  const TemporaryDirectory directory;
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const auto engine = parallelize(std::make_shared<ExtendedNet>(nullptr),
                                    torch::optim::SGDOptions(0.1), {}, group);
    Checkpoints checkpoints(*engine, directory.path(), options);
    body(checkpoints);
  });
}

TEST(Unsavables, OfNotesAndOfWhatIsTrackedAreNamedAtOnce) {
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"a\nb", "text"}, {"note", "not \xff UTF-8"}, {"", "no name"}}) {
    CheckpointsOptions options;
    options.notes[name] = text;
    EXPECT_THAT(message_of([&] { with_checkpoints(options, [](Checkpoints&) {}); }),
                HasSubstr("cannot be saved"));
  }
  with_checkpoints({.notes = {{"note", "ü"}}}, [](Checkpoints& checkpoints) {
    at::Tensor complex_numbers = torch::zeros({2}, at::kComplexDouble);
    EXPECT_THAT(message_of([&] { checkpoints.track("numbers", complex_numbers); }),
                HasSubstr("expected a dtype that safetensors has"));
    std::string text = "\xff";
    EXPECT_THAT(message_of([&] { checkpoints.track("text", text); }),
                AllOf(HasSubstr("track 'text'"), HasSubstr("UTF-8")));
    int64_t number = 0;
    EXPECT_THAT(message_of([&] { checkpoints.track("", number); }), HasSubstr("an empty name"));
    EXPECT_THAT(message_of([&] { checkpoints.track("a\n", number); }),
                AllOf(HasSubstr("'a\\n'"), Not(HasSubstr("rank-"))));
    // Tensors that a save can read but a load cannot write.
    static const float kConstants[2] = {1, 2};
    at::Tensor expanded = torch::zeros({1}).expand({3});
    at::Tensor constants = torch::from_blob(const_cast<float*>(kConstants), {2});
    at::Tensor inferred = [] {
      const c10::InferenceMode mode;
      return torch::zeros({2});
    }();
    for (at::Tensor* const tensor : {&expanded, &constants, &inferred}) {
      EXPECT_THAT(message_of([&] { checkpoints.track("tensor", *tensor); }),
                  AllOf(HasSubstr("track 'tensor'"), HasSubstr("clone()")));
    }
    at::Tensor fit = torch::zeros({2}, at::kUInt16);
    checkpoints.track("fit", fit);
    checkpoints.save();
    checkpoints.finish();
  });
}

TEST(Unsavables, ALazilyNegatedTensorIsSavedAsOperatorsSeeIt) {
  const TemporaryDirectory directory;
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const auto engine = parallelize(std::make_shared<ExtendedNet>(nullptr),
                                    torch::optim::SGDOptions(0.1), {}, group);
    SaveOptions options;
    options.extras.tensors["negated"] = at::_neg_view(torch::ones({2}));
    options.extras.tensors["zero"] = at::_efficientzerotensor({2}, at::kFloat);
    save_checkpoint(*engine, directory.path() + "/run", options);
    const auto loaded = load_checkpoint(*engine, directory.path() + "/run");
    ASSERT_TRUE(loaded.has_value());
    EXPECT_TRUE(at::equal(loaded->extras.tensors.at("negated"), -torch::ones({2})));
    EXPECT_TRUE(at::equal(loaded->extras.tensors.at("zero"), torch::zeros({2})));
  });
}

TEST(Unsavables, ExtrasAreNamedOnAllRanks) {
  const TemporaryDirectory directory;
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const auto engine = parallelize(std::make_shared<ExtendedNet>(nullptr),
                                    torch::optim::SGDOptions(0.1), {}, group);
    for (const at::Tensor& tensor :
         {at::Tensor(), torch::eye(2).to_sparse(), torch::eye(2).to_sparse_csr(),
          torch::empty({2}, at::kMeta), torch::zeros({2}, at::kComplexDouble)}) {
      SaveOptions options;
      if (group->rank() == 1) options.extras.rank_tensors["mine"] = tensor;
      const std::string said =
          message_of([&] { save_checkpoint(*engine, directory.path() + "/run", options); });
      EXPECT_THAT(said, AllOf(HasSubstr("rank 1"), HasSubstr("extra 'mine'")));
    }
    save_checkpoint(*engine, directory.path() + "/run");
  });
}

/// Returns stderr's text about a tracked sampler while two steps are made and saved.
std::string said_of_sampler(bool advances, bool draws) {
  const TemporaryDirectory directory;
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const auto net = std::make_shared<ExtendedNet>(nullptr);
    const auto engine = parallelize(net, torch::optim::SGDOptions(0.1), {}, group);
    data::DistributedSampler sampler(20, *group);
    Checkpoints checkpoints(*engine, directory.path(), {.every = 1});
    checkpoints.track("data", sampler);
    checkpoints.load();
    sampler.reset();
    for (int step = 0; step < 3; ++step) {
      if (draws) sampler.next(2);
      net->parameters()[0].sum().backward();
      engine->step();
      if (draws && advances) sampler.advance();
      checkpoints.after_step();
    }
    checkpoints.finish();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(Unsavables, ASamplerThatNobodyAdvancesIsNamedOnce) {
  const std::string said = said_of_sampler(/*advances=*/false, /*draws=*/true);
  EXPECT_THAT(said, AllOf(HasSubstr("'data'"), HasSubstr("advance()")));
  EXPECT_EQ(said.find("'data'"), said.rfind("'data'")) << said;
  EXPECT_THAT(said_of_sampler(/*advances=*/true, /*draws=*/true), Not(HasSubstr("'data'")));
  EXPECT_THAT(said_of_sampler(/*advances=*/false, /*draws=*/false), Not(HasSubstr("'data'")));
}

}  // namespace
}  // namespace tessera::internal::testing
