#include "tessera/trace.h"
#include "tessera/core/sched/chrome_events.h"
#include "tessera/core/sched/trace_span.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

std::vector<Json> events_of(const Json& file, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : file.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

/// Names of rows by thread id.
std::map<int, std::string> row_names(const Json& file) {
  std::map<int, std::string> names;
  for (const Json& event : events_of(file, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  return names;
}

/// "row: name" of every span, in the order of the file.
std::vector<std::string> placed(const Json& file) {
  const std::map<int, std::string> rows = row_names(file);
  std::vector<std::string> result;
  for (const Json& event : events_of(file, "X")) {
    result.push_back(rows.at(event.at("tid")) + ": " + event.at("name").get<std::string>());
  }
  return result;
}

/// Whether two spans of one row overlap and neither contains the other.
bool has_crossing(const Json& file) {
  const std::vector<Json> spans = events_of(file, "X");
  const auto ns = [](const Json& microseconds) {
    return std::llround(microseconds.get<double>() * 1000);
  };
  for (const Json& a : spans) {
    for (const Json& b : spans) {
      if (a.at("tid") != b.at("tid")) continue;
      const auto begin_a = ns(a.at("ts")), end_a = begin_a + ns(a.at("dur"));
      const auto begin_b = ns(b.at("ts")), end_b = begin_b + ns(b.at("dur"));
      if (begin_a < begin_b && begin_b < end_a && end_a < end_b) return true;
    }
  }
  return false;
}

TEST(TraceTest, KeepsWhatWasRecorded) {
  Trace trace;
  trace.record(TraceTrack::kGather, "layers.0", 10, 30, 4096);
  trace.record(TraceTrack::kVote, "vote", 40, 35);
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0].track, TraceTrack::kGather);
  EXPECT_EQ(spans[0].name, "layers.0");
  EXPECT_EQ(spans[0].begin_ns, 10);
  EXPECT_EQ(spans[0].end_ns, 30);
  EXPECT_EQ(spans[0].bytes, 4096);
  EXPECT_EQ(spans[1].end_ns, 40) << "an end before the begin";
  EXPECT_EQ(trace.dropped(), 0);
}

TEST(TraceTest, NamesOutliveTheCallersText) {
  Trace trace;
  const std::string expected(40, 'a');
  {
    std::string text = expected;
    trace.record(TraceTrack::kCompute, text, 0, 1);
    text.assign(40, 'b');
    trace.record(TraceTrack::kCompute, text, 1, 2);
  }
  for (int i = 0; i < 1000; ++i) trace.record(TraceTrack::kCompute, std::to_string(i), 2, 3);
  trace.record(TraceTrack::kCompute, expected, 3, 4);
  const std::vector<Trace::Span> spans = trace.spans();
  EXPECT_EQ(spans[0].name, expected);
  EXPECT_EQ(spans[1].name, std::string(40, 'b'));
  EXPECT_EQ(spans[2 + 999].name, "999");
  EXPECT_EQ(spans.back().name.data(), spans[0].name.data()) << "one copy of each name";
}

TEST(TraceTest, CutsLongNames) {
  Trace trace;
  trace.record(TraceTrack::kCompute, std::string(254, 'a') + "\xC3\xA4", 0, 1);  // through the 'ä'
  EXPECT_EQ(trace.spans()[0].name.size(), 255);
  const Json file = Json::parse(to_chrome_json(trace, 0));
  EXPECT_EQ(events_of(file, "X")[0].at("name"), std::string(254, 'a') + "\xEF\xBF\xBD");
}

TEST(TraceTest, CountsWhatGoesBeyondItsCapacity) {
  for (const size_t capacity : {size_t{0}, size_t{1}, size_t{4096}, size_t{5000}}) {
    Trace trace(capacity);
    for (int64_t i = 0; i < 9000; ++i) trace.record(TraceTrack::kCompute, "a", i, i + 1);
    const std::vector<Trace::Span> spans = trace.spans();
    ASSERT_EQ(spans.size(), capacity);
    EXPECT_EQ(trace.dropped(), 9000 - static_cast<int64_t>(capacity));
    for (size_t i = 0; i < capacity; ++i) {
      ASSERT_EQ(spans[i].begin_ns, static_cast<int64_t>(i)) << "the first ones are kept";
    }
    const std::string json = to_chrome_json(trace, 0);
    EXPECT_EQ(events_of(Json::parse(json), "X").size(), capacity);
    EXPECT_THAT(json,
                ::testing::HasSubstr(std::to_string(9000 - capacity) + " later spans dropped"));
  }
}

TEST(TraceTest, TakesSpansOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int64_t kEach = 3000;
  Trace trace(kThreads * kEach - 100);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&trace, thread] {
      const std::string name = "thread " + std::to_string(thread);
      for (int64_t i = 0; i < kEach; ++i) {
        trace.record(TraceTrack::kReduce, name, i, i + 1, thread);
        if (i % 1000 == 0) trace.spans();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.dropped(), 100);
  std::map<int64_t, int64_t> next;
  for (const Trace::Span& span : trace.spans()) {
    ASSERT_EQ(span.name, "thread " + std::to_string(span.bytes));
    ASSERT_EQ(span.begin_ns, next[span.bytes]++) << "the spans of a thread stay in order";
  }
}

TEST(TraceSpanTest, RecordsFromConstructionToDestruction) {
  Trace trace;
  const int64_t before = Trace::now_ns();
  {
    const TraceSpan outer(&trace, TraceTrack::kCompute, "outer");
    const TraceSpan inner(&trace, TraceTrack::kGather, "inner", 12);
  }
  const int64_t after = Trace::now_ns();
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 2);
  const Trace::Span& inner = spans[0];
  const Trace::Span& outer = spans[1];
  EXPECT_EQ(inner.name, "inner");
  EXPECT_EQ(inner.track, TraceTrack::kGather);
  EXPECT_EQ(inner.bytes, 12);
  EXPECT_LE(before, outer.begin_ns);
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
  EXPECT_LE(outer.end_ns, after);
}

TEST(TraceSpanTest, DoesNothingWithoutATrace) {
  EXPECT_NO_THROW(TraceSpan(nullptr, TraceTrack::kCompute, "unseen", 12));
}

TEST(ChromeJsonTest, NamesProcessesAndRowsInOrder) {
  Trace trace;
  // Recorded in reverse order.
  for (const TraceTrack track : {TraceTrack::kVote, TraceTrack::kOptimizer, TraceTrack::kReduce,
                                 TraceTrack::kGather, TraceTrack::kCompute}) {
    trace.record(track, "x", 0, 1);
  }
  const Json file = Json::parse(to_chrome_json(trace, 7));
  std::vector<std::string> by_sort_index;
  const std::map<int, std::string> rows = row_names(file);
  std::map<int, std::string> sorted;
  for (const Json& event : file.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 7);
    const Json& name = event.at("name");
    if (name == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), "rank 7");
    }
    if (name == "process_sort_index") {
      EXPECT_EQ(event.at("args").at("sort_index"), 7);
    }
    EXPECT_NE(name, "process_labels") << "nothing was dropped";
    if (name == "thread_sort_index") {
      sorted[event.at("args").at("sort_index")] = rows.at(event.at("tid"));
    }
  }
  for (const auto& [index, name] : sorted) by_sort_index.push_back(name);
  EXPECT_THAT(by_sort_index, ElementsAre("compute", "gather", "reduce", "optimizer", "vote"));
  EXPECT_FALSE(rows.contains(0)) << "the idle task of viewers";
}

TEST(ChromeJsonTest, WritesExactMicrosecondsAndBytes) {
  Trace trace;
  const int64_t year_ns = int64_t{365} * 24 * 3600 * 1'000'000'000;
  trace.record(TraceTrack::kGather, "a", year_ns, year_ns + 1'000'007, int64_t{1} << 40);
  trace.record(TraceTrack::kGather, "b", year_ns + 2'000'030, year_ns + 2'000'030);
  const std::string text = to_chrome_json(trace, 0);
  EXPECT_THAT(text, ::testing::HasSubstr("\"ts\":0.000,\"dur\":1000.007,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"ts\":2000.030,\"dur\":0.000}"));
  const std::vector<Json> spans = events_of(Json::parse(text), "X");
  EXPECT_EQ(spans[0].at("args").at("bytes"), int64_t{1} << 40);
  EXPECT_EQ(spans[0].at("cat"), "gather");
  EXPECT_FALSE(spans[1].contains("args"));
}

TEST(ChromeJsonTest, IsAFileWithoutSpansToo) {
  const Json file = Json::parse(to_chrome_json(Trace(), 0));
  EXPECT_EQ(events_of(file, "X").size(), 0);
  EXPECT_EQ(events_of(file, "M").size(), 2);
}

TEST(ChromeJsonTest, KeepsNamesThatAreTextAndRepairsOthers) {
  const std::string bad = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> names = {
      {"", ""},
      {"layers.0.\"q\"\\k/v", "layers.0.\"q\"\\k/v"},
      {std::string("a\0b\n\t\r\x1f\x7f", 8), std::string("a\0b\n\t\r\x1f\x7f", 8)},
      {"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"},
      {"\xFF", bad},
      {"\x80x", bad + "x"},
      {"\xC0\xAF", bad + bad},                      // an overlong encoding
      {"\xE0\x80\xAF", bad + bad + bad},            // an overlong encoding
      {"\xED\xA0\x80", bad + bad + bad},            // a surrogate
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},  // beyond the last code point
      {"\xE2\x82", bad},                            // cut off
      {"\xE2\"\x82", bad + "\"" + bad},
  };
  Trace trace;
  for (size_t i = 0; i < names.size(); ++i) {
    trace.record(TraceTrack::kCompute, names[i].first, static_cast<int64_t>(i),
                 static_cast<int64_t>(i) + 1);
  }
  const std::vector<Json> spans = events_of(Json::parse(to_chrome_json(trace, 0)), "X");
  ASSERT_EQ(spans.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(spans[i].at("name").get<std::string>(), names[i].second) << i;
  }
}

TEST(ChromeJsonTest, PutsOverlappingSpansIntoFurtherRows) {
  Trace trace;
  trace.record(TraceTrack::kGather, "a", 0, 10);
  trace.record(TraceTrack::kGather, "inside a", 2, 4);
  trace.record(TraceTrack::kGather, "b", 5, 15);   // overlaps a
  trace.record(TraceTrack::kGather, "c", 7, 20);   // overlaps a and b
  trace.record(TraceTrack::kGather, "d", 10, 12);  // touches a
  trace.record(TraceTrack::kGather, "e", 16, 18);  // in c, but the first row is free
  trace.record(TraceTrack::kReduce, "r", 5, 15);   // another track
  trace.record(TraceTrack::kCompute, "same inner", 1, 3);
  trace.record(TraceTrack::kCompute, "same outer", 1, 3);
  const Json file = Json::parse(to_chrome_json(trace, 0));
  EXPECT_THAT(placed(file), ElementsAre("compute: same outer", "compute: same inner", "gather: a",
                                        "gather: inside a", "gather 2: b", "gather 3: c",
                                        "gather: d", "gather: e", "reduce: r"));
  EXPECT_FALSE(has_crossing(file));
}

TEST(ChromeJsonTest, NoRowHasCrossingSpans) {
  Trace trace;
  uint32_t state = 1;
  const auto random = [&](int64_t below) {
    state = state * 1664525 + 1013904223;
    return static_cast<int64_t>(state >> 8) % below;
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t begin = random(500);
    trace.record(static_cast<TraceTrack>(random(5)), "x", begin, begin + random(60));
  }
  Json file = Json::parse(to_chrome_json(trace, 0));
  EXPECT_EQ(events_of(file, "X").size(), 300);
  EXPECT_FALSE(has_crossing(file));
  EXPECT_EQ(row_names(file).at(1), "compute");

  // Negative control: all in one row, they cross.
  for (Json& event : file.at("traceEvents")) event["tid"] = 1;
  EXPECT_TRUE(has_crossing(file));
}

TEST(ChromeJsonTest, PiecesJoinedAreTheWhole) {
  Trace trace;
  for (int64_t i = 0; i < 50; ++i) trace.record(TraceTrack::kCompute, "name", i, i + 1);
  ChromeEvents whole(trace, 2);
  const std::string expected = whole.next(0, std::numeric_limits<size_t>::max());
  EXPECT_EQ(whole.next(0, 1), "");
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{300}, size_t{1000}}) {
    ChromeEvents events(trace, 2);
    std::string joined = events.next(0, bytes);
    int pieces = 1;
    for (std::string piece; !(piece = events.next(0, bytes)).empty(); ++pieces) {
      EXPECT_LE(piece.size(), bytes + 200);
      joined += ",\n" + piece;
    }
    EXPECT_EQ(joined, expected);
    EXPECT_GT(pieces, 1);
  }
}

}  // namespace
}  // namespace tessera::internal
