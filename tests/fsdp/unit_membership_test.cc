#include "tessera/fsdp/unit_membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/tests/fsdp/wrap_models.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using testing::Box;
using testing::box_of;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::list_of;
using testing::message_of;
using ::testing::Not;
using testing::table_of;
using testing::TinyGpt;
using Lines = std::vector<std::string>;
using Memberships = std::vector<UnitPlan::Membership>;

/// Lists what is wrong with `units`, each with the name of the unit or parameter. Written
/// independently of the rules; UnitPlan asserts only a part of it.
Lines problems_in(const Memberships& units, const ParameterTable& table) {
  Lines problems;
  std::vector<int> times(table.size());
  std::set<std::string> names;
  int last_stage = 0;
  size_t last_front = table.size();
  for (const UnitPlan::Membership& unit : units) {
    if (!names.insert(unit.name).second) problems.push_back("name " + unit.name);
    if (unit.parameters.empty()) {
      problems.push_back("empty " + unit.name);
      continue;
    }
    if (!std::is_sorted(unit.parameters.begin(), unit.parameters.end())) {
      problems.push_back("order in " + unit.name);
    }
    const Parameter& first = table[unit.parameters.front()];
    for (size_t index : unit.parameters) {
      ++times[index];
      if (table[index].tensor.scalar_type() != first.tensor.scalar_type()) {
        problems.push_back("dtype in " + unit.name);
      }
      if (table[index].is_trainable == (unit.kind == UnitKind::kFrozen)) {
        problems.push_back("frozen in " + unit.name);
      }
    }
    const int stage = unit.kind == UnitKind::kPlain ? 0 : unit.kind == UnitKind::kRoot ? 1 : 2;
    if (stage < last_stage || (stage == last_stage && unit.parameters.front() >= last_front)) {
      problems.push_back("order of " + unit.name);
    }
    last_stage = stage;
    last_front = unit.parameters.front();
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (times[i] != 1) problems.push_back(absl::StrCat(times[i], " times ", table[i].name));
  }
  return problems;
}

/// "name [kind]: parameters" for each unit, without a kind for plain ones.
Lines text_of(const Memberships& units, const ParameterTable& table) {
  Lines lines;
  for (const UnitPlan::Membership& unit : units) {
    std::string line = unit.name + (unit.kind == UnitKind::kRoot     ? " [root]:"
                                    : unit.kind == UnitKind::kFrozen ? " [frozen]:"
                                                                     : ":");
    for (size_t index : unit.parameters) absl::StrAppend(&line, " ", table[index].name);
    lines.push_back(line);
  }
  return lines;
}

/// The units of `model`, after checking what must hold for all units and that a plan accepts them.
Lines units_of(const nn::Module& model, const WrapPolicy& policy = {}) {
  const ParameterTable table = table_of(model);
  const Memberships units = unit_membership(model, table, policy);
  EXPECT_THAT(problems_in(units, table), IsEmpty());
  for (int slices : {1, 3, 7}) EXPECT_EQ(UnitPlan(table, units, slices).size(), units.size());
  return text_of(units, table);
}

TEST(UnitMembership, Scenario41BlocksAreUnitsAndTheTiedEmbeddingIsInTheRoot) {
  const TinyGpt model(3);  // head.weight is wte.weight
  const Lines expected = {
      "layers.2: layers.2.norm.weight layers.2.norm.bias layers.2.fc.weight layers.2.fc.bias",
      "layers.1: layers.1.norm.weight layers.1.norm.bias layers.1.fc.weight layers.1.fc.bias",
      "layers.0: layers.0.norm.weight layers.0.norm.bias layers.0.fc.weight layers.0.fc.bias",
      "root [root]: wte.weight norm.weight norm.bias"};
  EXPECT_EQ(units_of(model), expected);
  EXPECT_EQ(units_of(model, wrap_blocks()), expected);  // the empty policy is the default
}

TEST(UnitMembership, Scenario41ATieAcrossUnitsMovesToTheRoot) {
  const TinyGpt model(1);
  EXPECT_EQ(units_of(model, wrap_modules({{"wte"}, {"head"}, {"norm"}})),
            (Lines{"norm: norm.weight norm.bias",
                   "root [root]: wte.weight layers.0.norm.weight layers.0.norm.bias "
                   "layers.0.fc.weight layers.0.fc.bias"}));  // wte and head are left empty
  // If both are in one unit, the weight stays there.
  EXPECT_THAT(units_of(model, wrap_modules({{"wte", "head"}})), Contains("wte + head: wte.weight"));
}

TEST(UnitMembership, Scenario41ATieMovesToTheClosestUnitAroundAllItsNames) {
  auto pair = std::make_shared<Box>();
  auto left = pair->add("left", box_of(1));
  auto right = pair->add("right", box_of(2));
  right->tie("inside", left->own("inside", 3));
  Box model;
  model.add("pair", pair);
  auto apart = model.add("apart", box_of(4));
  apart->tie("across", left->own("across", 5));
  EXPECT_EQ(units_of(model, wrap_modules({{"pair"}, {"pair.left"}, {"pair.right"}, {"apart"}})),
            (Lines{"apart: apart.w", "pair.right: pair.right.w", "pair: pair.left.inside",
                   "pair.left: pair.left.w", "root [root]: pair.left.across"}));
}

TEST(UnitMembership, Scenario41ATieAcrossTwoBlocksMovesToTheRootAndTheBlocksKeepTheRest) {
  const auto first = box_of(1), second = box_of(2), third = box_of(3);
  third->tie("again", first->own("shared", 4));
  Box model;
  model.add("layers", list_of<std::shared_ptr<Box>>({first, second, third}));
  EXPECT_EQ(units_of(model), (Lines{"layers.2: layers.2.w", "layers.1: layers.1.w",
                                    "layers.0: layers.0.w", "root [root]: layers.0.shared"}));
}

TEST(UnitMembership, Scenario41AModuleSharedByTwoBlocksIsATieAndARepeatedBlockIsNot) {
  const auto shared = box_of(1), first = box_of(2), second = box_of(3);
  first->add("norm", shared);
  second->add("norm", shared);
  Box model;
  model.add("layers", list_of<std::shared_ptr<Box>>({first, second}));
  EXPECT_EQ(units_of(model), (Lines{"layers.1: layers.1.w", "layers.0: layers.0.w",
                                    "root [root]: layers.0.norm.w"}));
  Box repeated;
  repeated.add("layers", list_of<std::shared_ptr<Box>>({first, first, first}));
  repeated.own("bias", 1);
  EXPECT_EQ(units_of(repeated),
            (Lines{"layers.0: layers.0.w layers.0.norm.w", "root [root]: bias"}));
}

TEST(UnitMembership, Scenario41AnInnerUnitKeepsItsOwnAndTheOuterOneTheRest) {
  const TinyGpt model(2);
  EXPECT_EQ(units_of(model, wrap_by_type<TinyGpt::Block, nn::Linear>()),
            (Lines{"layers.1.fc: layers.1.fc.weight layers.1.fc.bias",
                   "layers.1: layers.1.norm.weight layers.1.norm.bias",
                   "layers.0.fc: layers.0.fc.weight layers.0.fc.bias",
                   "layers.0: layers.0.norm.weight layers.0.norm.bias",
                   "root [root]: wte.weight norm.weight norm.bias"}));
}

TEST(UnitMembership, Scenario41ModulesOfOneListShareAUnit) {
  const TinyGpt model(2);
  EXPECT_EQ(units_of(model, wrap_modules({{"norm", "layers.0"}, {"layers.1.fc"}})),
            (Lines{"layers.1.fc: layers.1.fc.weight layers.1.fc.bias",
                   "norm + layers.0: layers.0.norm.weight layers.0.norm.bias layers.0.fc.weight "
                   "layers.0.fc.bias norm.weight norm.bias",
                   "root [root]: wte.weight layers.1.norm.weight layers.1.norm.bias"}));
}

TEST(UnitMembership, Scenario41SizeRule) {
  const TinyGpt model(2);  // 40 tied, per layer 8 and 20, 8
  EXPECT_EQ(units_of(model, wrap_by_size(20)),
            (Lines{"layers.1.fc: layers.1.fc.weight layers.1.fc.bias",
                   "layers.0.fc: layers.0.fc.weight layers.0.fc.bias",
                   "root [root]: wte.weight layers.0.norm.weight layers.0.norm.bias "
                   "layers.1.norm.weight layers.1.norm.bias norm.weight norm.bias"}));
  EXPECT_EQ(units_of(model, wrap_by_size(21)).size(), 3u);  // both layers of 28 and the root
  EXPECT_EQ(units_of(model, wrap_by_size(29)).size(), 1u);
}

TEST(UnitMembership, Scenario41WithoutContainersAllIsRoot) {
  Box model;
  model.add("a", nn::Linear(2, 3));
  model.add("b", nn::Linear(3, 2));
  const Lines whole = {"root [root]: a.weight a.bias b.weight b.bias"};
  EXPECT_EQ(units_of(model), whole);
  EXPECT_EQ(units_of(model, wrap_whole()), whole);
  EXPECT_EQ(units_of(TinyGpt(3), wrap_whole()).size(), 1u);
  EXPECT_THAT(units_of(Box()), IsEmpty());
}

TEST(UnitMembership, Scenario41WithoutARootUnitIfNothingIsLeft) {
  const nn::Sequential model(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2));
  EXPECT_EQ(units_of(*model), (Lines{"2: 2.weight 2.bias", "0: 0.weight 0.bias"}));
}

TEST(UnitMembership, Scenario41TorchsTransformerEncoder) {
  const nn::TransformerEncoder encoder(
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(4, 2), 2)
          .norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({4})))));
  const Lines units = units_of(*encoder);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_THAT(units[0], AllOf(HasSubstr("layers.1: layers.1.self_attn.in_proj_weight"),
                              HasSubstr("layers.1.norm2.bias"), Not(HasSubstr("layers.0"))));
  EXPECT_THAT(units[1], AllOf(HasSubstr("layers.0: layers.0.self_attn.in_proj_weight"),
                              HasSubstr("layers.0.norm2.bias"), Not(HasSubstr("layers.1"))));
  EXPECT_EQ(units[2], "root [root]: norm.weight norm.bias");
}

TEST(UnitMembership, FrozenParametersGetUnitsOfTheirOwnAtTheEnd) {
  const auto first = box_of(1), second = box_of(2);
  first->freeze("base", 3);
  auto third = std::make_shared<Box>();
  third->freeze("base", 4);
  Box model;
  model.freeze("scale", 5);
  model.add("layers", list_of<std::shared_ptr<Box>>({first, second, third}));
  model.own("bias", 6);
  EXPECT_EQ(units_of(model),
            (Lines{"layers.1: layers.1.w", "layers.0: layers.0.w", "root [root]: bias",
                   "layers.2 (frozen) [frozen]: layers.2.base",
                   "layers.0 (frozen) [frozen]: layers.0.base", "root (frozen) [frozen]: scale"}));
}

TEST(UnitMembership, AModelCanBeFrozenWhole) {
  const TinyGpt model(2);
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  const Lines units = units_of(model);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_THAT(units[0], HasSubstr("layers.1 (frozen) [frozen]: layers.1.norm.weight"));
  EXPECT_THAT(units[1], HasSubstr("layers.0 (frozen) [frozen]: layers.0.norm.weight"));
  EXPECT_EQ(units[2], "root (frozen) [frozen]: wte.weight norm.weight norm.bias");
}

TEST(UnitMembership, DtypesSplitAUnit) {
  const auto first = box_of(1), second = box_of(2);
  first->own("x", 1, at::kDouble);
  first->own("y", 1);
  second->freeze("x", 1, at::kDouble);
  second->freeze("y", 1, at::kBFloat16);
  Box model;
  model.own("a", 1, at::kDouble);
  model.own("b", 1, at::kBFloat16);
  model.add("layers", list_of<std::shared_ptr<Box>>({first, second}));
  // The name has a dtype if the trainable or the frozen half of a unit has more than one.
  EXPECT_EQ(units_of(model),
            (Lines{"layers.1: layers.1.w", "layers.0 (Double): layers.0.x",
                   "layers.0 (Float): layers.0.w layers.0.y", "root (BFloat16) [root]: b",
                   "root (Double) [root]: a", "layers.1 (frozen, BFloat16) [frozen]: layers.1.y",
                   "layers.1 (frozen, Double) [frozen]: layers.1.x"}));
}

TEST(UnitMembership, NamesStayDistinctBesideAModuleCalledRoot) {
  Box model;
  model.own("w", 1);
  model.add("root", box_of(2));
  EXPECT_EQ(units_of(model, wrap_modules({{"root"}})),
            (Lines{"root (2): root.w", "root [root]: w"}));
}

TEST(UnitMembership, ParametersThatTheTableLeavesOutAreInNoUnit) {
  const TinyGpt model(2);
  std::vector<NamedTensor> kept;
  for (const auto& entry : model.named_parameters()) {
    if (entry.key().rfind("layers.0.", 0) != 0) kept.push_back({entry.key(), entry.value()});
  }
  const ParameterTable table(kept);
  const Memberships units = unit_membership(model, table, wrap_blocks());
  EXPECT_THAT(problems_in(units, table), IsEmpty());
  EXPECT_EQ(text_of(units, table),
            (Lines{"layers.1: layers.1.norm.weight layers.1.norm.bias layers.1.fc.weight "
                   "layers.1.fc.bias",
                   "root [root]: wte.weight norm.weight norm.bias"}));
}

TEST(UnitMembership, DependsOnNothingButNames) {
  // Models at other addresses, allocated in either order, and one that no shared_ptr owns.
  const auto early = std::make_shared<TinyGpt>(4);
  const TinyGpt late(4);
  for (const WrapPolicy& policy :
       {wrap_blocks(), wrap_by_size(20), wrap_by_type<nn::Linear>(), wrap_whole()}) {
    const Lines units = units_of(*early, policy);
    EXPECT_EQ(units_of(late, policy), units);
    EXPECT_EQ(units_of(*early, policy), units);
  }
}

TEST(UnitMembership, Scenario41AChoiceThatCannotBeMadeIsListedWhole) {
  Box model;
  auto shared = model.add("a", box_of(1));
  model.add("b", shared);
  model.add("c", nn::Linear(2, 2));
  model.add("drop", nn::Dropout());
  const ParameterTable table = table_of(model);
  const WrapPolicy policy =
      wrap_modules({{"a", "nowhere"}, {}, {"drop", "b", "c"}, {"c", ""}, {"a.w"}});
  EXPECT_EQ(message_of([&] { unit_membership(model, table, policy); }),
            "[wrap] " + policy.name +
                ": these units cannot be made:\n"
                "  [wrap] module 'nowhere': got an unknown name, expected a module below the "
                "model; correct the name\n"
                "  [wrap] unit 1: got an empty list, expected names of modules; leave the list "
                "out\n"
                "  [wrap] module 'drop': got no parameters in it or below, expected some; leave "
                "the name out\n"
                "  [wrap] module 'b': got it a second time, it is 'a' too, expected each module "
                "in one unit once; leave one of the two out\n"
                "  [wrap] module 'c': got it a second time, expected each module in one unit "
                "once; leave one of the two out\n"
                "  [wrap] module '': got an unknown name, expected a module below the model; "
                "correct the name\n"
                "  [wrap] module 'a.w': got an unknown name, expected a module below the model; "
                "correct the name\n"
                "  modules with parameters: 'a', 'c'");
  EXPECT_THAT(message_of([&] { unit_membership(Box(), table_of(Box()), wrap_modules({{"x"}})); }),
              HasSubstr("modules with parameters: none"));
}

TEST(UnitMembership, ARuleOfTheUsersIsCheckedLikeOurs) {
  const TinyGpt model(2);
  const WrapPolicy policy = {.name = "my rule", .choose = [](const nn::Module&) {
                               return std::vector<std::vector<std::string>>{{"layer.0"}};
                             }};
  EXPECT_THAT(message_of([&] { unit_membership(model, table_of(model), policy); }),
              AllOf(HasSubstr("[wrap] my rule: these units cannot be made"),
                    HasSubstr("module 'layer.0': got an unknown name"), HasSubstr("'layers.0'")));
}

// The control: every check of problems_in() notices its violation, so a rule that violated it would
// fail the tests above.
TEST(UnitMembership, ControlBrokenMembershipsAreSeen) {
  Box model;
  model.own("a", 1);
  model.own("b", 1, at::kDouble);
  model.freeze("c", 1);
  model.own("d", 1);
  const ParameterTable table = table_of(model);
  const Memberships good = {{"d", {3}},
                            {"r (Double)", {1}, UnitKind::kRoot},
                            {"r (Float)", {0}, UnitKind::kRoot},
                            {"c", {2}, UnitKind::kFrozen}};
  EXPECT_THAT(problems_in(good, table), IsEmpty());
  const auto broken = [&](auto&& change) {
    Memberships units = good;
    change(units);
    return problems_in(units, table);
  };
  EXPECT_THAT(broken([](Memberships& units) { units.erase(units.begin()); }),
              ElementsAre("0 times d"));
  EXPECT_THAT(broken([](Memberships& units) {
                units[1].parameters = {1, 3};
              }),
              ElementsAre("dtype in r (Double)", "2 times d"));
  EXPECT_THAT(broken([](Memberships& units) { units[3].kind = UnitKind::kPlain; }),
              ElementsAre("frozen in c", "order of c"));
  EXPECT_THAT(broken([](Memberships& units) { std::swap(units[1], units[2]); }),
              ElementsAre("order of r (Double)"));
  EXPECT_THAT(broken([](Memberships& units) { std::swap(units[0], units[3]); }),
              Contains("order of r (Double)"));
  EXPECT_THAT(broken([](Memberships& units) { units[1].name = "d"; }), ElementsAre("name d"));
  EXPECT_THAT(broken([](Memberships& units) {
                units.erase(units.begin());
                units[1].parameters = {3, 0};
              }),
              Contains("order in r (Float)"));
  EXPECT_THAT(broken([](Memberships& units) {
                units.push_back({"e", {}});
              }),
              ElementsAre("empty e"));
}

}  // namespace
}  // namespace tessera::internal
