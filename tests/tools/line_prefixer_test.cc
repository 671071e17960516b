#include "tessera/tools/run/line_prefixer.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::internal {
namespace {

TEST(LinePrefixerTest, CutsAreWithoutEffect) {
  const std::string text = "one\n\ntwo\r\nwith tab\t\nlast";
  const std::string expected = "[1] one\n[1] \n[1] two\r\n[1] with tab\t\n[1] last\n";
  for (size_t size = 1; size <= text.size(); ++size) {
    LinePrefixer lines("[1] ");
    std::string out;
    for (size_t at = 0; at < text.size(); at += size) lines.add(text.substr(at, size), out);
    lines.finish(out);
    EXPECT_EQ(out, expected) << "pieces of " << size;
  }
}

TEST(LinePrefixerTest, APartialLineWaitsForItsEnd) {
  LinePrefixer lines("> ");
  std::string out;
  lines.add("par", out);
  EXPECT_EQ(out, "");
  lines.add("tial\n", out);
  EXPECT_EQ(out, "> partial\n");
  lines.finish(out);
  EXPECT_EQ(out, "> partial\n");
}

TEST(LinePrefixerTest, AnEndlessLineIsCut) {
  LinePrefixer lines("> ");
  std::string out;
  lines.add(std::string(LinePrefixer::kMaxLine_bytes + 5, 'x'), out);
  EXPECT_EQ(out, "> " + std::string(LinePrefixer::kMaxLine_bytes, 'x') + "\n");
  lines.finish(out);
  EXPECT_EQ(out.substr(out.size() - 8), "> xxxxx\n");
}

TEST(LinePrefixerTest, ControlOneCutterForTwoWorkersMixesLines) {
  // What the launcher would do wrong with one cutter for all: the checks above would see it.
  LinePrefixer shared("[0] "), first("[0] "), second("[0] ");
  std::string mixed, whole;
  for (LinePrefixer* lines : {&shared, &first}) lines->add("a", lines == &shared ? mixed : whole);
  for (LinePrefixer* lines : {&shared, &second}) {
    lines->add("b\n", lines == &shared ? mixed : whole);
  }
  EXPECT_EQ(mixed, "[0] ab\n");
  EXPECT_EQ(whole, "[0] b\n");
}

}  // namespace
}  // namespace tessera::internal
