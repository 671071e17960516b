#include "tessera/optim/algorithm/algorithm.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/algorithm_options.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using torch::optim::AdamWOptions;

struct StrangeOptions : torch::optim::OptimizerCloneableOptions<StrangeOptions> {
  double rate = 0.5;
  bool is_bold = false;
};

HyperParameterField rate_field(double end) {
  return HyperParameterField::number<StrangeOptions>(
      "rate", [](auto& of) -> auto& { return of.rate; }, end);
}
HyperParameterField bold_field(bool chooses_states = false) {
  return HyperParameterField::toggle<StrangeOptions>(
      "bold", [](auto& of) -> auto& { return of.is_bold; }, chooses_states);
}

TEST(HyperParameterField, ReadsAndWritesTheOptions) {
  StrangeOptions options;
  const HyperParameterField rate = rate_field(1);
  rate.write(options, 0.25);
  EXPECT_EQ(options.rate, 0.25);
  EXPECT_EQ(rate.read(options), 0.25);
  const HyperParameterField bold = bold_field();
  EXPECT_EQ(bold.read(options), 0.0);
  bold.write(options, 1.0);
  EXPECT_TRUE(options.is_bold);
  EXPECT_EQ(bold.read(options), 1.0);
}

TEST(HyperParameterField, SaysWhatIsOutOfRange) {
  const double infinity = std::numeric_limits<double>::infinity();
  const HyperParameterField bounded = rate_field(1);
  EXPECT_EQ(bounded.problem(0.0), "");
  EXPECT_EQ(bounded.problem(std::nextafter(1.0, 0.0)), "");
  EXPECT_EQ(bounded.problem(1.0), "rate: got 1, expected 0 <= rate < 1");
  EXPECT_EQ(bounded.problem(-0.5), "rate: got -0.5, expected 0 <= rate < 1");
  EXPECT_THAT(bounded.problem(std::nan("")), HasSubstr("got nan"));
  const HyperParameterField open = rate_field(infinity);
  EXPECT_EQ(open.problem(std::numeric_limits<double>::max()), "");
  EXPECT_EQ(open.problem(infinity), "rate: got inf, expected a finite number, at least 0");

  HyperParameterField whole = rate_field(infinity);
  whole.is_whole = true;
  EXPECT_EQ(whole.problem(3.0), "");
  EXPECT_EQ(whole.problem(1.5), "rate: got 1.5, expected a whole number, at least 0");
  whole.begin = -infinity;
  EXPECT_EQ(whole.problem(-3.0), "");
  EXPECT_EQ(whole.problem(1e300), "rate: got 1e+300, expected a whole number of at most 2^53");
  EXPECT_THAT(whole.problem(std::nan("")), HasSubstr("got nan"));

  EXPECT_EQ(bold_field().problem(1.0), "");
  EXPECT_EQ(bold_field().problem(0.5), "bold: got 0.5, expected 0 or 1");
}

TEST(HyperParameterField, DifferentValuesHaveDifferentTextsAndWords) {
  const HyperParameterField rate = rate_field(1);
  EXPECT_EQ(rate.text(0.0003), "rate 0.0003");
  EXPECT_NE(rate.text(0.1), rate.text(std::nextafter(0.1, 1.0)));
  EXPECT_NE(rate.word(0.1), rate.word(std::nextafter(0.1, 1.0)));
  const HyperParameterField bold = bold_field();
  EXPECT_EQ(bold.text(0.0), "");
  EXPECT_EQ(bold.text(1.0), "bold");
  EXPECT_NE(bold.word(0.0), bold.word(1.0));
}

TEST(HyperParameterField, WhatChoosesStatesIsNoEntryOfOne) {
  EXPECT_TRUE(rate_field(1).is_saved());
  EXPECT_TRUE(bold_field().is_saved());
  EXPECT_FALSE(bold_field(/*chooses_states=*/true).is_saved());
}

TEST(Algorithms, HaveNamesOfTheirOwnAndTablesThatReadWhatTheyWrite) {
  std::set<std::string> names;
  for (const Algorithm* algorithm : algorithms()) {
    SCOPED_TRACE(algorithm->name);
    EXPECT_TRUE(names.insert(algorithm->name).second);
    EXPECT_FALSE(algorithm->accepts(StrangeOptions()));
    EXPECT_NE(algorithm->make_update, nullptr);
    std::set<std::string> fields;
    for (const HyperParameterField& field : algorithm->hyper_parameters) {
      EXPECT_TRUE(fields.insert(field.name).second) << field.name;
    }
    EXPECT_TRUE(fields.contains("lr")) << "schedulers set it";
  }
  EXPECT_THAT(known_options(), HasSubstr("AdamWOptions"));
}

TEST(Algorithms, AreFoundByTheirOptions) {
  const Algorithm* adamw = algorithm_of(AdamWOptions());
  ASSERT_NE(adamw, nullptr);
  EXPECT_EQ(adamw->name, "AdamW");
  AdamWOptions options(0.5);
  for (const HyperParameterField& field : adamw->hyper_parameters) {
    field.write(options, field.is_switch ? 1.0 : 0.125);
    EXPECT_EQ(field.read(options), field.is_switch ? 1.0 : 0.125) << field.name;
  }
  EXPECT_TRUE(
      options ==
      AdamWOptions(0.125).betas({0.125, 0.125}).eps(0.125).weight_decay(0.125).amsgrad(true));
  EXPECT_EQ(algorithm_of(StrangeOptions()), nullptr);
}

TEST(AlgorithmOptions, AreAValueOfTheTypeThatWasGiven) {
  AlgorithmOptions first = AdamWOptions(0.5);
  AlgorithmOptions second = first;
  second.as<AdamWOptions>().lr(0.25);
  EXPECT_EQ(first.as<AdamWOptions>().lr(), 0.5);
  first = second;
  EXPECT_EQ(std::as_const(first).as<AdamWOptions>().lr(), 0.25);
  EXPECT_NE(first.get(), second.get());
  EXPECT_THAT(message_of([&] { first.as<StrangeOptions>(); }),
              HasSubstr("[optim] options: got torch::optim::AdamWOptions, expected "));
  AlgorithmOptions none;
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(none.clone(), nullptr);
  EXPECT_EQ(AlgorithmOptions(none).get(), nullptr);
  EXPECT_THAT(message_of([&] { none.as<AdamWOptions>(); }), HasSubstr("options: got none"));
}

}  // namespace
}  // namespace tessera::internal
