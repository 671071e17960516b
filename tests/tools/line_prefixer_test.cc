#include "tessera/tools/run/line_prefixer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;

/// One cutter over a sink that nobody writes out; other writers may append to that, too.
class LinePrefixerTest : public ::testing::Test {
 protected:
  using Time = LinePrefixer::Clock::time_point;

  void add(const std::string& bytes) { lines_.add(bytes, Time(), sink_); }
  /// So much later that what is kept is due.
  void show() { lines_.show_due(Time() + LinePrefixer::kPatience, sink_); }
  const std::string& out() const { return sink_.buffer(); }

  Sink sink_{-1};
  LinePrefixer lines_{"[1] "};
};

/// What becomes of `text` that is read in pieces of `size` bytes, without a wait.
std::string cut(const std::string& text, size_t size) {
  Sink sink(-1);
  LinePrefixer lines("[1] ");
  for (size_t at = 0; at < text.size(); at += size) lines.add(text.substr(at, size), {}, sink);
  lines.finish(sink);
  return sink.buffer();
}

TEST_F(LinePrefixerTest, CutsAreWithoutEffect) {
  struct Case {
    std::string text, expected;
  };
  const std::vector<Case> cases = {
      {"one\n\ntwo\r\n\r\nwith tab\t\nlast",
       "[1] one\n[1] \n[1] two\r\n[1] \r\n[1] with tab\t\n[1] last\n"},
      {"1/3\r2/3\r3/3\nend\n", "[1] 1/3\r[1] 2/3\r[1] 3/3\n[1] end\n"},
      {"\r1/3\r2/3\r3/3\n", "\r[1] 1/3\r[1] 2/3\r[1] 3/3\n"},
      {"a\r\r\nb\r   \rc\r", "[1] a\r\r\n[1] b\r[1]    \r[1] c\r\n"},
  };
  for (const Case& test : cases) {
    for (size_t size = 1; size <= test.text.size(); ++size) {
      EXPECT_EQ(cut(test.text, size), test.expected) << "pieces of " << size;
    }
  }
}

TEST_F(LinePrefixerTest, ALineWaitsForItsEnd) {
  add("par");
  EXPECT_EQ(out(), "");
  add("tial\n");
  EXPECT_EQ(out(), "[1] partial\n");
  lines_.finish(sink_);
  EXPECT_EQ(out(), "[1] partial\n");
}

TEST_F(LinePrefixerTest, AnEndlessLineIsCut) {
  add(std::string(LinePrefixer::kMaxLine_bytes + 5, 'x'));
  EXPECT_EQ(out(), "[1] " + std::string(LinePrefixer::kMaxLine_bytes, 'x') + "\n");
  lines_.finish(sink_);
  EXPECT_EQ(out().substr(out().size() - 10), "[1] xxxxx\n");
}

TEST_F(LinePrefixerTest, AReturnEndsALineAtOnce) {
  add("10%\r");
  EXPECT_EQ(out(), "[1] 10%\r");
  add("20%");
  EXPECT_EQ(out(), "[1] 10%\r");
  add("\r");
  EXPECT_EQ(out(), "[1] 10%\r[1] 20%\r");
  add("\nnext\n");
  EXPECT_EQ(out(), "[1] 10%\r[1] 20%\r\n[1] next\n");
}

TEST_F(LinePrefixerTest, AReturnBeforeAnyTextShowsNoPrefix) {
  add("\r");
  show();
  lines_.finish(sink_);
  EXPECT_EQ(out(), "");
  add("10%");
  show();
  EXPECT_EQ(out(), "\r[1] 10%");
  add("\r20%");
  show();
  EXPECT_EQ(out(), "\r[1] 10%\r[1] 20%");
  lines_.finish(sink_);
  EXPECT_EQ(out(), "\r[1] 10%\r[1] 20%\n");
}

TEST_F(LinePrefixerTest, TextIsDueAQuarterOfASecondAfterItsFirstByte) {
  const Time start = Time() + milliseconds(1000);
  EXPECT_EQ(lines_.due(), std::nullopt);
  lines_.add("whole\nna", start, sink_);
  lines_.add("me? ", start + milliseconds(200), sink_);
  EXPECT_EQ(lines_.due(), start + milliseconds(250));
  lines_.show_due(start + milliseconds(249), sink_);
  EXPECT_EQ(out(), "[1] whole\n");
  lines_.show_due(start + milliseconds(250), sink_);
  EXPECT_EQ(out(), "[1] whole\n[1] name? ");
  EXPECT_EQ(lines_.due(), std::nullopt);
  lines_.add("\nnew line", start + milliseconds(700), sink_);
  EXPECT_EQ(lines_.due(), start + milliseconds(950));
}

TEST_F(LinePrefixerTest, ALineThatWasShownGoesOnWithoutAPrefix) {
  add("Loading... ");
  show();
  add("still ");
  show();
  add("done\nnext\n");
  EXPECT_EQ(out(), "[1] Loading... still done\n[1] next\n");
}

TEST_F(LinePrefixerTest, AfterAnotherWritersLineItIsANewOne) {
  LinePrefixer other("[2] ");
  add("Loading... ");
  show();
  other.add("hello\n", {}, sink_);
  add("done\nnext\n");
  EXPECT_EQ(out(), "[1] Loading... \n[2] hello\n[1] done\n[1] next\n");
}

TEST_F(LinePrefixerTest, AnotherWritersNewlineIsTheOneThatWasMissing) {
  for (const char* end : {"\n", "\r\n", "\r"}) {
    Sink sink(-1);
    LinePrefixer lines("[1] "), other("[2] ");
    lines.add("1/2", {}, sink);
    lines.show_due(Time() + LinePrefixer::kPatience, sink);
    other.add("hello\n", {}, sink);
    lines.add(std::string(end) + "2/2\n", {}, sink);
    EXPECT_EQ(sink.buffer(), "[1] 1/2\n[2] hello\n[1] 2/2\n");
  }
}

TEST_F(LinePrefixerTest, BarsOfTwoWorkersDoNotOverwriteEachOther) {
  LinePrefixer other("[2] ");
  for (const char* bar : {"1/2\r", "2/2\r"}) {
    add(bar);
    other.add(bar, {}, sink_);
  }
  lines_.finish(sink_);
  other.finish(sink_);
  EXPECT_EQ(out(), "[1] 1/2\r\n[2] 1/2\r\n[1] 2/2\r\n[2] 2/2\r\n");
}

TEST_F(LinePrefixerTest, ControlOneCutterForTwoWorkersMixesLines) {
  // What the launcher would do wrong with one cutter for all: the checks above would see it.
  LinePrefixer other("[1] ");
  add("a");
  other.add("b\n", {}, sink_);
  EXPECT_EQ(out(), "[1] b\n");
  add("b\n");
  EXPECT_EQ(out(), "[1] b\n[1] ab\n");
}

}  // namespace
}  // namespace tessera::internal
