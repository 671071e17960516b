#include "tessera/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/refused_calls.h"

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    std::string name = ::testing::TempDir() + "trace_file_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ~TraceFileTest() override { fs::remove_all(folder); }

  static std::string text_of(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder;
};

/// Returns every rank's error of writing `spans` spans per rank to `path`.
std::vector<std::string> errors_of(int size, const std::string& path, int64_t spans = 3) {
  std::vector<std::string> errors = run_ranks_expecting_errors(size, [&](auto world) {
    Trace trace;
    for (int64_t i = 0; i < spans; ++i) trace.record(TraceTrack::kCompute, "unit", i, i + 1);
    try {
      write_trace(*world, trace, path);
    } catch (const c10::Error& error) {
      world->barrier("after");  // the group still works
      throw std::runtime_error(error.what_without_backtrace());
    }
  });
  return errors;
}

TEST_F(TraceFileTest, MergesAllRanks) {
  for (const int size : {1, 3}) {
    const fs::path path = folder / ("of " + std::to_string(size) + ".json");
    // Rank 0 has no spans; rank 1 fills several pieces.
    const auto spans_of = [](int rank) { return rank == 1 ? int64_t{30000} : int64_t{5} * rank; };
    run_ranks(size, [&](auto world) {
      Trace trace;
      const int rank = world->rank();
      for (int64_t i = 0; i < spans_of(rank); ++i) {
        trace.record(TraceTrack::kGather, "layers." + std::to_string(i % 7),
                     1'000'000 * (1 + rank) + 10 * i, 1'000'000 * (1 + rank) + 10 * i + 5, 64);
      }
      write_trace(*world, trace, rank == 0 ? path.string() : "/nowhere/at/all");
      EXPECT_TRUE(fs::exists(path)) << "when it returns on any rank";
    });
    const Json file = Json::parse(text_of(path));
    std::map<int, int64_t> spans;
    std::map<int, double> last;
    std::set<std::string> processes;
    for (const Json& event : file.at("traceEvents")) {
      const int rank = event.at("pid");
      if (event.at("name") == "process_name") processes.insert(event.at("args").at("name"));
      if (event.at("ph") != "X") continue;
      ++spans[rank];
      const double ts = event.at("ts");
      EXPECT_GE(ts, last[rank]) << "in order";
      if (spans[rank] == 1) {
        EXPECT_EQ(ts, 1000.0 * (rank - 1)) << "since the first span of any rank";
      }
      last[rank] = ts;
    }
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(spans[rank], spans_of(rank));
      EXPECT_TRUE(processes.contains("rank " + std::to_string(rank)));
    }
    EXPECT_THAT(processes, SizeIs(size));
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    if (size == 3) {
      EXPECT_GT(fs::file_size(path), size_t{2} << 20) << "more than one piece";
    }
  }
  EXPECT_THAT(files(), SizeIs(2)) << "no temporary is left";
}

TEST_F(TraceFileTest, ReplacesAnOlderFile) {
  const fs::path path = folder / "trace.json";
  std::ofstream(path) << "older";
  EXPECT_THAT(errors_of(3, path), Each(""));
  EXPECT_EQ(Json::parse(text_of(path)).at("traceEvents").size(), 3 * (2 + 2 + 3));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(files(), SizeIs(1));
}

// In a folder that everybody may write, anybody may have created a link of that name.
TEST_F(TraceFileTest, ReplacesALinkAndLeavesAloneWhatItPointsTo) {
  fs::permissions(folder, fs::perms::all | fs::perms::sticky_bit);
  const fs::path precious = folder / "precious";
  const fs::path absent = folder / "absent";
  std::ofstream(precious) << "precious";
  for (const fs::path& target : {precious, absent}) {
    const fs::path link = folder / ("to " + target.filename().string());
    fs::create_symlink(target, link);
    EXPECT_THAT(errors_of(3, link), Each(""));
    EXPECT_FALSE(fs::is_symlink(link));
    EXPECT_EQ(Json::parse(text_of(link)).at("traceEvents").size(), 3 * (2 + 2 + 3));
  }
  EXPECT_EQ(text_of(precious), "precious");
  EXPECT_FALSE(fs::exists(absent));
  EXPECT_THAT(files(), SizeIs(3)) << "no temporary is left";
}

TEST_F(TraceFileTest, RefusesALinkToWhatIsNoFile) {
  const fs::path null = folder / "to null";
  const fs::path self = folder / "to the folder";
  fs::create_symlink("/dev/null", null);
  fs::create_symlink(folder, self);
  for (const fs::path& link : {null, self}) {
    EXPECT_THAT(errors_of(3, link),
                Each(HasSubstr("[trace] rank 0: cannot write '" + link.string() +
                               "': it is a link to something that is not a file; name a file")));
    EXPECT_TRUE(fs::is_symlink(link));
  }
}

TEST_F(TraceFileTest, UnwritablePathsAreTheSameErrorOnEveryRank) {
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const fs::path plain = folder / "plain";
  std::ofstream(plain) << "older";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the name is empty"},
      {folder / "missing" / "t.json", "No such file or directory"},
      {plain / "t.json", "Not a directory"},
      {folder, "it exists and is not a file"},
      {pipe, "it exists and is not a file"},
      {folder / std::string(300, 'n'), "File name too long"},
  };
  for (const int size : {1, 3}) {
    for (const auto& [path, reason] : cases) {
      const std::string expected = "[trace] rank 0: cannot write '" + path + "': " + reason +
                                   "; name a file that this rank can write";
      const std::vector<std::string> errors = errors_of(size, path);
      EXPECT_THAT(errors, SizeIs(size));
      EXPECT_THAT(errors, Each(HasSubstr(expected)));
      EXPECT_THAT(errors, Each(errors[0]));
    }
  }
  EXPECT_THAT(files(), SizeIs(2)) << "no temporary is left";
}

TEST_F(TraceFileTest, AFullDiskIsTheSameErrorOnEveryRank) {
  const std::vector<std::string> errors = errors_of(3, "/dev/full", 30000);
  EXPECT_THAT(errors, SizeIs(3));
  EXPECT_THAT(errors, Each(HasSubstr("[trace] rank 0: cannot write '/dev/full': No space left on "
                                     "device")));
  EXPECT_TRUE(fs::is_character_file("/dev/full")) << "not replaced";
}

TEST_F(TraceFileTest, NeedsNoFsyncWhereThereIsNone) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const fs::path path = folder / "trace.json";
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    run_with_refused_calls({{SYS_fsync, error}},
                           [&] { EXPECT_THAT(errors_of(1, path), Each("")); });
    EXPECT_TRUE(fs::remove(path));
  }
  run_with_refused_calls({{SYS_fsync, EIO}}, [&] {
    EXPECT_THAT(errors_of(1, path), Each(HasSubstr("Input/output error")));
  });
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(TraceFileTest, WritesToADeviceInPlace) {
  EXPECT_THAT(errors_of(3, "/dev/null"), Each(""));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(TraceFileTest, KeepsTheOlderFileWhenTheNewOneDoesNotFit) {
  const fs::path path = folder / "trace.json";
  std::ofstream(path) << "older";
  // The limit is less than half of the file, so that writing fails halfway. A world of one has no
  // arena, which would be a file too.
  const auto before_signal = std::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> errors;
  {
    FileSizeLimit small(1 << 20);
    errors = errors_of(1, path, 30000);
  }
  std::signal(SIGXFSZ, before_signal);
  EXPECT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors, Each(HasSubstr("'" + path.string() + "': File too large")));
  EXPECT_EQ(text_of(path), "older");
  EXPECT_THAT(files(), SizeIs(1)) << "no temporary is left";

  // Negative control: without the limit the same trace replaces the file.
  EXPECT_THAT(errors_of(1, path, 30000), Each(""));
  EXPECT_GT(fs::file_size(path), size_t{2} << 20);
}

}  // namespace
}  // namespace tessera::internal::testing
