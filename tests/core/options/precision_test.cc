#include "tessera/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace tessera::internal {
namespace {

using c10::ScalarType;
using tessera::resolve;  // internal::resolve() is that of options
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kBf16 = ScalarType::BFloat16;
constexpr auto kFp16 = ScalarType::Half;
constexpr auto kFp32 = ScalarType::Float;
constexpr auto kFp64 = ScalarType::Double;

UnitPrecision unit(ScalarType parameters, ScalarType communication, ScalarType reduce,
                   ScalarType master) {
  return {parameters, communication, reduce, master};
}

TEST(Precision, FollowsTheModelWhereUnset) {
  EXPECT_EQ(resolve({}, kFp32), unit(kFp32, kFp32, kFp32, kFp32));
  EXPECT_EQ(resolve({}, kFp64), unit(kFp64, kFp64, kFp64, kFp64));
  EXPECT_FALSE(resolve({}, kFp32).has_masters());
}

TEST(Precision, SixteenBitModelsHaveSumsAndMastersInFloat) {
  EXPECT_EQ(resolve({}, kBf16), unit(kBf16, kBf16, kFp32, kFp32));
  EXPECT_EQ(resolve({}, kFp16), unit(kFp16, kFp16, kFp32, kFp32));
  EXPECT_TRUE(resolve({}, kBf16).has_masters());
}

TEST(Precision, NarrowParametersKeepMastersInTheModelsDtype) {
  EXPECT_EQ(resolve({.parameters = kBf16}, kFp32), unit(kBf16, kBf16, kFp32, kFp32));
  EXPECT_EQ(resolve({.parameters = kBf16}, kFp64), unit(kBf16, kBf16, kFp64, kFp64));
}

TEST(Precision, MastersAreNeverNarrowerThanParameters) {
  EXPECT_EQ(resolve({.parameters = kFp64}, kFp32), unit(kFp64, kFp64, kFp64, kFp64));
  EXPECT_EQ(resolve({.parameters = kFp64}, kBf16), unit(kFp64, kFp64, kFp64, kFp64));
}

TEST(Precision, EachFieldCanBeChosen) {
  const Precision all{
      .parameters = kBf16, .communication = kFp32, .reduce = kFp64, .master = kFp64};
  EXPECT_EQ(resolve(all, kFp32), unit(kBf16, kFp32, kFp64, kFp64));
  EXPECT_EQ(resolve({.communication = kBf16}, kFp32), unit(kFp32, kBf16, kFp32, kFp32));
  EXPECT_EQ(resolve({.reduce = kBf16}, kBf16), unit(kBf16, kBf16, kBf16, kFp32));
  EXPECT_EQ(resolve({.master = kFp64}, kFp32), unit(kFp32, kFp32, kFp64, kFp64));
}

TEST(Precision, HasNoProblemsByDefault) {
  for (const ScalarType dtype : {kBf16, kFp16, kFp32, kFp64}) {
    EXPECT_THAT(problems_of({}, dtype), IsEmpty());
  }
  EXPECT_THAT(problems_of({.parameters = kFp16, .communication = kBf16, .reduce = kFp32}, kFp32),
              IsEmpty());
}

TEST(Precision, ListsEveryDtypeThatIsNoFloat) {
  EXPECT_THAT(
      problems_of({.parameters = ScalarType::Long, .master = ScalarType::ComplexFloat}, kFp32),
      ElementsAre(
          "precision.parameters: got Long; allowed Float, Double, BFloat16, Half; leave it "
          "out to follow the model",
          "precision.master: got ComplexFloat; allowed Float, Double, BFloat16, Half; leave "
          "it out to follow the model"));
}

TEST(Precision, RefusesMastersOf16Bits) {
  EXPECT_THAT(
      problems_of({.master = kBf16}, kBf16),
      ElementsAre("precision.master: got BFloat16; allowed Float, Double; 16-bit masters lose "
                  "small updates; leave it out"));
}

TEST(Precision, RefusesMastersThatCannotHoldTheParameters) {
  EXPECT_THAT(problems_of({.master = kFp32}, kFp64),
              ElementsAre("precision.master: got Float; allowed what holds Double; leave it out or "
                          "make it wider"));
}

TEST(Precision, RefusesSumsNarrowerThanCommunication) {
  EXPECT_THAT(
      problems_of({.reduce = kBf16}, kFp32),
      ElementsAre("precision.reduce: got BFloat16; allowed what holds Float; leave it out or "
                  "make communication narrower"));
  // Neither 16-bit format holds the other.
  EXPECT_THAT(problems_of({.communication = kFp16, .reduce = kBf16}, kFp32),
              ElementsAre(HasSubstr("got BFloat16; allowed what holds Half")));
}

/// reduce follows from master here, so communication must change.
TEST(Precision, NamesTheCommunicationThatIsWiderThanSumsLeftOut) {
  EXPECT_THAT(
      problems_of({.communication = kFp64}, kFp32),
      ElementsAre(
          "precision.communication: got Double; allowed what Float holds; make it narrower or "
          "set reduce"));
}

TEST(Precision, TextsTellPrecisionsApart) {
  const std::vector<Precision> all = {{},
                                      {.parameters = kBf16},
                                      {.communication = kBf16},
                                      {.reduce = kBf16},
                                      {.master = kFp64},
                                      {.parameters = kFp16}};
  std::set<std::string> texts;
  for (const Precision& precision : all) texts.insert(to_string(precision));
  EXPECT_EQ(texts.size(), all.size());
  EXPECT_EQ(to_string(all[1]),
            "precision parameters BFloat16 communication unset reduce unset master unset");
}

}  // namespace
}  // namespace tessera::internal
