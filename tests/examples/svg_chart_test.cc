#include "tessera/examples/memory_compare/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace memory_compare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Chart example() {
  Chart chart;
  chart.title = "A & B < C";
  chart.subtitle = "two \"kinds\"";
  chart.axis = "MiB";
  chart.outline_name = "predicted";
  chart.series = {{"one", "#111111", "#eeeeee"}, {"two", "#222222", "#dddddd"}};
  chart.bars = {{.label = "first",
                 .values = {30.0, 12.0},
                 .outline = 42.0,
                 .note = "42",
                 .fill = Chart::Fill::kSolid},
                {.label = "second",
                 .values = {0.0, 21.0},
                 .outline = {},
                 .note = "21",
                 .fill = Chart::Fill::kHatched}};
  chart.footnotes = {"a note"};
  return chart;
}

/// Returns the first part of `text` that is not well-formed XML (without entity declarations), or
/// "".
std::string xml_problem(const std::string& text) {
  static const std::regex kTag("<(/?)([a-zA-Z]+)((?: [-a-zA-Z0-9:]+=\"[^\"<>&]*\")*)(/?)>");
  static const std::regex kText("(?:[^<>&]|&(?:amp|lt|gt|quot);)*");
  std::vector<std::string> open;
  size_t at = 0;
  while (at < text.size()) {
    const size_t tag = std::min(text.find('<', at), text.size());
    const std::string between = text.substr(at, tag - at);
    if (!std::regex_match(between, kText)) return "text '" + between + "'";
    if (tag == text.size()) break;
    std::smatch match;
    const std::string rest = text.substr(tag, text.find('>', tag) - tag + 1);
    if (!std::regex_match(rest, match, kTag)) return "tag '" + rest + "'";
    if (match[1].length() > 0) {
      if (open.empty() || open.back() != match[2]) return "end of '" + match[2].str() + "'";
      open.pop_back();
    } else if (match[4].length() == 0) {
      open.push_back(match[2]);
    }
    at = tag + rest.size();
  }
  return open.empty() ? "" : "no end of '" + open.back() + "'";
}

struct Box {
  double x, y, width, height;
};

std::vector<Box> boxes(const std::string& svg, const std::string& style) {
  const std::regex rectangle("<rect class=\"" + style +
                             "\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" "
                             "height=\"([0-9.]+)\"");
  std::vector<Box> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), rectangle), end; it != end; ++it) {
    const std::smatch& m = *it;
    found.push_back({std::stod(m[1]), std::stod(m[2]), std::stod(m[3]), std::stod(m[4])});
  }
  return found;
}

TEST(SvgChart, IsWellFormed) {
  EXPECT_EQ(xml_problem(to_svg(example())), "");
  EXPECT_EQ(xml_problem(to_svg({})), "") << "an empty chart";
}

TEST(SvgChartNegativeControl, TheCheckOfItsFormFindsProblems) {
  EXPECT_EQ(xml_problem("<svg><text>a & b</text></svg>"), "text 'a & b'");
  EXPECT_EQ(xml_problem("<svg><text></svg>"), "end of 'svg'");
  EXPECT_EQ(xml_problem("<svg>"), "no end of 'svg'");
  EXPECT_EQ(xml_problem("<rect x=1/>"), "tag '<rect x=1/>'");
}

TEST(SvgChart, DrawsPartsToScaleAndTheFrameAroundThem) {
  const std::string svg = to_svg(example());
  // The legend's swatch comes first. An empty part is not drawn.
  const std::vector<Box> one = boxes(svg, "part0"), two = boxes(svg, "part1");
  ASSERT_EQ(one.size(), 2u);
  ASSERT_EQ(two.size(), 3u);
  EXPECT_NEAR(one[1].width / two[1].width, 30.0 / 12.0, 0.01);
  EXPECT_NEAR(two[2].width / two[1].width, 21.0 / 12.0, 0.01);
  EXPECT_NEAR(two[1].x, one[1].x + one[1].width, 0.11) << "parts follow one another";
  const std::vector<Box> frames = boxes(svg, "frame");
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_NEAR(frames[1].width, one[1].width + two[1].width, 0.21);
  EXPECT_LT(frames[1].y, one[1].y);
  EXPECT_EQ(boxes(svg, "hatch").size(), 1u);
}

TEST(SvgChart, EverythingLiesInsideAndRowsDoNotTouch) {
  const std::string svg = to_svg(example());
  const std::vector<Box> ground = boxes(svg, "ground");
  ASSERT_FALSE(ground.empty());
  for (const char* style : {"part0", "part1", "frame", "hatch", "ground"}) {
    for (const Box& box : boxes(svg, style)) {
      EXPECT_GE(box.x, 0);
      EXPECT_LE(box.x + box.width, ground[0].width);
      EXPECT_LE(box.y + box.height, ground[0].height);
    }
  }
  const std::vector<Box> parts = boxes(svg, "part1");
  EXPECT_GT(parts[2].y, parts[1].y + parts[1].height);
}

TEST(SvgChart, HasColoursForBothModesAndNoMachine) {
  const std::string svg = to_svg(example());
  EXPECT_THAT(svg, HasSubstr("@media (prefers-color-scheme: dark)"));
  EXPECT_THAT(svg, HasSubstr(".part0 { fill: #111111; }"));
  EXPECT_THAT(svg, HasSubstr(".part0 { fill: #eeeeee; }"));
  EXPECT_THAT(svg, HasSubstr("A &amp; B &lt; C"));
  EXPECT_THAT(svg, Not(HasSubstr("http://localhost")));
  EXPECT_EQ(to_svg(example()), svg) << "the same chart, the same bytes";
}

TEST(SvgChart, RefusesBarsThatDoNotFitTheSeries) {
  for (const std::vector<double>& values :
       std::vector<std::vector<double>>{{1.0}, {1.0, 2.0, 3.0}, {1.0, -2.0}, {1.0, std::nan("")}}) {
    Chart chart = example();
    chart.bars[1].values = values;
    EXPECT_THAT([&] { to_svg(chart); }, ::testing::ThrowsMessage<std::invalid_argument>(HasSubstr(
                                            "[chart] bar 'second': expected one finite value")));
  }
}

TEST(Ticks, AreRoundAndReachTheLargest) {
  EXPECT_THAT(ticks(364, 6), ElementsAre(0, 100, 200, 300, 400));
  EXPECT_THAT(ticks(400, 4), ElementsAre(0, 100, 200, 300, 400));
  EXPECT_THAT(ticks(0.7, 6),
              ElementsAre(0, ::testing::DoubleEq(0.2), ::testing::DoubleEq(0.4),
                          ::testing::DoubleEq(0.6000000000000001), ::testing::DoubleEq(0.8)));
  EXPECT_THAT(ticks(0, 6), ElementsAre(0, 1));
  EXPECT_THAT(ticks(11, 1), ElementsAre(0, 20));
}

}  // namespace
}  // namespace memory_compare
