#include "tessera/wrap_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/fsdp/wrap_models.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using testing::Box;
using testing::box_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::list_of;
using testing::message_of;
using testing::TinyGpt;
using Entries = std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>;

/// The chosen modules, if each is a unit of its own.
std::vector<std::string> chosen(const WrapPolicy& policy, const nn::Module& model) {
  std::vector<std::string> names;
  for (const std::vector<std::string>& unit : policy.choose(model)) {
    EXPECT_EQ(unit.size(), 1u);
    names.insert(names.end(), unit.begin(), unit.end());
  }
  return names;
}

TEST(WrapBlocks, Scenario41TakesTheBlocksOfAList) {
  const TinyGpt model(3);
  EXPECT_THAT(chosen(wrap_blocks(), model), ElementsAre("layers.0", "layers.1", "layers.2"));
  EXPECT_EQ(wrap_blocks().name, "wrap_blocks");
}

TEST(WrapBlocks, Scenario41TakesTheBlocksOfAModelThatIsItselfAContainer) {
  const nn::Sequential model(nn::Linear(2, 3), nn::Tanh(), nn::Linear(3, 2));
  EXPECT_THAT(chosen(wrap_blocks(), *model), ElementsAre("0", "2"));
}

TEST(WrapBlocks, Scenario41LeavesAChildWithoutASiblingOfItsType) {
  const nn::Sequential model(nn::Conv1d(2, 2, 1), nn::ReLU(), nn::ReLU(), nn::Linear(2, 2));
  EXPECT_THAT(chosen(wrap_blocks(), *model), IsEmpty());
  EXPECT_THAT(chosen(wrap_blocks(), TinyGpt(1)), IsEmpty());
  // Types must be equal: a derived type is another one.
  struct Derived : nn::LinearImpl {
    using nn::LinearImpl::LinearImpl;
  };
  const nn::Sequential mixed(nn::Linear(2, 2), std::make_shared<Derived>(2, 2));
  EXPECT_THAT(chosen(wrap_blocks(), *mixed), IsEmpty());
}

TEST(WrapBlocks, Scenario41LooksIntoWhatItDidNotTake) {
  // A list inside the only Box of a Sequential, which is inside the model.
  auto encoder = std::make_shared<Box>();
  encoder->add("stages", list_of<std::shared_ptr<Box>>({box_of(1), box_of(2)}));
  Box model;
  model.add("body", nn::Sequential(nn::Embedding(3, 2), encoder));
  model.add("head", nn::Linear(2, 2));
  EXPECT_THAT(chosen(wrap_blocks(), model), ElementsAre("body.1.stages.0", "body.1.stages.1"));
}

TEST(WrapBlocks, Scenario41TakesTheOutermostOfNestedLists) {
  Box model;
  model.add("stages",
            list_of<nn::ModuleList>({list_of<nn::Linear>({nn::Linear(2, 2), nn::Linear(2, 2)}),
                                     list_of<nn::Linear>({nn::Linear(2, 2), nn::Linear(2, 2)})}));
  EXPECT_THAT(chosen(wrap_blocks(), model), ElementsAre("stages.0", "stages.1"));

  Box single;  // one list in the list: it has no sibling, so its children count
  single.add("stages",
             list_of<nn::ModuleList>({list_of<nn::Linear>({nn::Linear(2, 2), nn::Linear(2, 2)})}));
  EXPECT_THAT(chosen(wrap_blocks(), single), ElementsAre("stages.0.0", "stages.0.1"));
}

TEST(WrapBlocks, Scenario41TakesTheLayersOfTorchsTransformer) {
  const nn::TransformerEncoder encoder(
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(4, 2), 2));
  EXPECT_THAT(chosen(wrap_blocks(), *encoder), ElementsAre("layers.0", "layers.1"));
}

TEST(WrapBlocks, Scenario41PassesThroughADictionary) {
  const nn::ModuleDict parts(
      Entries{{"wte", nn::Embedding(3, 2).ptr()},
              {"wpe", nn::Embedding(3, 2).ptr()},
              {"h", list_of<nn::Linear>({nn::Linear(2, 2), nn::Linear(2, 2)}).ptr()}});
  Box model;
  model.add("transformer", parts);
  EXPECT_THAT(chosen(wrap_blocks(), model), ElementsAre("transformer.h.0", "transformer.h.1"));
}

TEST(WrapBlocks, Scenario41TakesAModuleThatIsRepeatedOnce) {
  const auto block = box_of(3);
  Box model;
  model.add("layers", list_of<std::shared_ptr<Box>>({block, block, block}));
  EXPECT_THAT(chosen(wrap_blocks(), model), ElementsAre("layers.0"));
}

TEST(WrapByType, Scenario41TakesEveryModuleOfTheTypesNestedOnesToo) {
  const TinyGpt model(2);
  EXPECT_THAT(chosen(wrap_by_type<TinyGpt::Block>(), model), ElementsAre("layers.0", "layers.1"));
  EXPECT_THAT(chosen((wrap_by_type<nn::Linear, TinyGpt::Block>()), model),
              ElementsAre("layers.0", "layers.0.fc", "layers.1", "layers.1.fc"));
}

TEST(WrapByType, Scenario41AHolderMeansItsModuleAndABaseItsDescendants) {
  struct Derived : nn::LinearImpl {
    using nn::LinearImpl::LinearImpl;
  };
  Box model;
  model.add("a", nn::Linear(2, 2));
  model.add("b", std::make_shared<Derived>(2, 2));
  model.add("c", box_of(1));
  EXPECT_THAT(chosen(wrap_by_type<nn::Linear>(), model), ElementsAre("a", "b"));
  EXPECT_THAT(chosen(wrap_by_type<nn::LinearImpl>(), model), ElementsAre("a", "b"));
  EXPECT_THAT(chosen(wrap_by_type<Derived>(), model), ElementsAre("b"));
  EXPECT_EQ(wrap_by_type<nn::Linear>().name, wrap_by_type<nn::LinearImpl>().name);
  EXPECT_EQ((wrap_by_type<nn::Linear, Box>().name),
            "wrap_by_type<torch::nn::LinearImpl, tessera::internal::testing::Box>");
}

TEST(WrapByType, ATypeThatOwnsNothingHereIsAnError) {
  const nn::Sequential model(nn::Linear(2, 2), nn::Dropout());
  for (const WrapPolicy& policy : {wrap_by_type<nn::Conv1d>(), wrap_by_type<nn::Dropout>()}) {
    EXPECT_THAT(message_of([&] { policy.choose(*model); }),
                AllOf(HasSubstr("[wrap] " + policy.name +
                                ": got no module of this model that it accepts and that owns "
                                "parameters, expected one or more"),
                      HasSubstr("use wrap_whole() for a single unit")));
  }
}

TEST(WrapIf, Scenario41AsksByNameAndModule) {
  const TinyGpt model(2);
  std::vector<std::string> asked;
  const WrapPolicy policy = wrap_if("odd", [&](std::string_view name, const nn::Module& module) {
    asked.emplace_back(name);
    return name == "layers.1" || dynamic_cast<const nn::EmbeddingImpl*>(&module) != nullptr;
  });
  EXPECT_EQ(policy.name, "odd");
  EXPECT_THAT(chosen(policy, model), ElementsAre("wte", "layers.1"));
  EXPECT_THAT(asked, ElementsAre("wte", "layers", "layers.0", "layers.0.norm", "layers.0.fc",
                                 "layers.1", "layers.1.norm", "layers.1.fc", "norm", "head"));
}

TEST(WrapIf, NoPredicateAndOneThatAcceptsNothingAreErrors) {
  EXPECT_THAT(message_of([] { wrap_if("mine", nullptr); }),
              HasSubstr("[wrap] mine: got an empty function, expected a predicate"));
  const WrapPolicy none = wrap_if("mine", [](auto&&...) { return false; });
  EXPECT_THAT(message_of([&] { none.choose(TinyGpt(2)); }),
              HasSubstr("[wrap] mine: got no module"));
}

/// a (10) and b (20) inside inner (own 5), next to c (8); the model owns 1.
class Sized : public Box {
 public:
  Sized() {
    own("w", 1);
    auto inner = std::make_shared<Box>();
    inner->own("w", 5);
    inner->add("a", box_of(10));
    inner->add("b", box_of(20));
    add("inner", inner);
    add("c", box_of(8));
  }
};

TEST(WrapBySize, Scenario41GoesFromTheLeavesUpwards) {
  const Sized model;
  using Names = std::vector<std::string>;
  EXPECT_EQ(chosen(wrap_by_size(1), model), (Names{"inner.a", "inner.b", "inner", "c"}));
  EXPECT_EQ(chosen(wrap_by_size(5), model), (Names{"inner.a", "inner.b", "inner", "c"}));
  EXPECT_EQ(chosen(wrap_by_size(6), model), (Names{"inner.a", "inner.b", "c"}));
  EXPECT_EQ(chosen(wrap_by_size(9), model), (Names{"inner.a", "inner.b"}));
  // 15 are left in inner without b (20).
  EXPECT_EQ(chosen(wrap_by_size(15), model), (Names{"inner.b", "inner"}));
  EXPECT_EQ(chosen(wrap_by_size(16), model), (Names{"inner.b"}));
  EXPECT_EQ(chosen(wrap_by_size(20), model), (Names{"inner.b"}));
  EXPECT_EQ(chosen(wrap_by_size(21), model), (Names{"inner"}));
  EXPECT_EQ(chosen(wrap_by_size(35), model), (Names{"inner"}));
  EXPECT_EQ(chosen(wrap_by_size(36), model), Names());  // 44 in all, but the model is the root
  EXPECT_EQ(wrap_by_size(36).name, "wrap_by_size(36)");
}

TEST(WrapBySize, Scenario41NeverTakesAListOrADictionary) {
  const nn::ModuleDict dictionary(Entries{{"x", box_of(4)}, {"y", box_of(4)}});
  Box model;
  model.add("list", list_of<std::shared_ptr<Box>>({box_of(4), box_of(4)}));
  model.add("dictionary", dictionary);
  model.add("sequence", nn::Sequential(nn::Linear(2, 1), nn::Linear(2, 1)));  // 3 each
  EXPECT_THAT(chosen(wrap_by_size(5), model), ElementsAre("sequence"));
  EXPECT_THAT(chosen(wrap_by_size(4), model),
              ElementsAre("list.0", "list.1", "dictionary.x", "dictionary.y", "sequence"));
}

TEST(WrapBySize, Scenario41TakesAnAttentionWholeOrNot) {
  // Width 4: 12 x 4 and 12 in, 4 x 4 and 4 out: 60 and 20.
  Box model;
  model.add("attention", nn::MultiheadAttention(4, 2));
  model.add("linear", nn::Linear(4, 4));
  EXPECT_THAT(chosen(wrap_by_size(20), model), ElementsAre("attention", "linear"));
  EXPECT_THAT(chosen(wrap_by_size(80), model), ElementsAre("attention"));
  EXPECT_THAT(chosen(wrap_by_size(81), model), IsEmpty());
}

TEST(WrapBySize, Scenario41CountsTiedElementsWhereAllTheirNamesAre) {
  Box model;
  auto pair = std::make_shared<Box>();
  auto left = pair->add("left", box_of(3));
  auto right = pair->add("right", box_of(4));
  right->tie("tied", left->own("tied", 100));
  model.add("pair", pair);
  EXPECT_THAT(chosen(wrap_by_size(50), model), ElementsAre("pair"));
  EXPECT_THAT(chosen(wrap_by_size(4), model), ElementsAre("pair.right", "pair"));
  EXPECT_THAT(chosen(wrap_by_size(107), model), ElementsAre("pair"));
  EXPECT_THAT(chosen(wrap_by_size(108), model), IsEmpty());
}

TEST(WrapBySize, Scenario41AModuleUsedTwiceCountsOnce) {
  const auto shared = box_of(10);
  Box model;
  auto twice = std::make_shared<Box>();
  twice->add("one", shared);
  twice->add("two", shared);
  model.add("twice", twice);
  EXPECT_THAT(chosen(wrap_by_size(10), model), ElementsAre("twice.one"));
  EXPECT_THAT(chosen(wrap_by_size(11), model), IsEmpty());
}

TEST(WrapBySize, ASizeBelowOneIsAnError) {
  for (int64_t size : {int64_t{0}, int64_t{-7}}) {
    EXPECT_THAT(message_of([&] { wrap_by_size(size); }),
                HasSubstr("[wrap] wrap_by_size: got " + std::to_string(size) +
                          ", expected 1 or more elements"));
  }
}

TEST(WrapModules, Scenario41SaysWhatItWasTold) {
  const std::vector<std::vector<std::string>> units = {{"wte", "head"}, {"layers.1"}};
  const WrapPolicy policy = wrap_modules(units);
  EXPECT_EQ(policy.choose(TinyGpt(2)), units);
  EXPECT_EQ(policy.name, "wrap_modules({wte, head}{layers.1})");
}

TEST(WrapWhole, Scenario41TakesNothing) {
  EXPECT_THAT(wrap_whole().choose(TinyGpt(3)), IsEmpty());
  EXPECT_EQ(wrap_whole().name, "wrap_whole");
}

}  // namespace
}  // namespace tessera::internal
