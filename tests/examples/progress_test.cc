#include "tessera/examples/gpt/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>

namespace gpt {
namespace {

/// A terminal that records what programs print.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
    const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    const int end = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    if (end >= 0 && ::ioctl(end, TIOCSWINSZ, &size) == 0) out_ = ::fdopen(end, "w");
  }
  ~Terminal() {
    if (out_ != nullptr) std::fclose(out_);
    ::close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::FILE* out() const { return out_; }

  /// Returns everything printed; afterwards nothing more can be printed.
  std::string close() {
    std::fclose(out_);
    out_ = nullptr;
    std::string text;
    char piece[256];
    for (ssize_t got; (got = ::read(master_, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int master_;
  std::FILE* out_ = nullptr;
};

/// Returns what Progress prints on a terminal with `columns` columns.
std::string printed_on(unsigned short columns) {
  Terminal terminal(columns);
  if (terminal.out() == nullptr) return "no terminal";
  Progress progress(terminal.out(), Progress::Display::kTerminal, {.steps = 3});
  for (int64_t step = 1; step <= 3; ++step) progress.report(step, 2.5, 1e-3);
  return terminal.close();
}

TEST(Progress, ALineDoesNotWrap) {
  for (const unsigned short columns : {20, 40, 80}) {
    const std::string text = printed_on(columns);
    const std::vector<std::string> lines = absl::StrSplit(text, "\r\033[K", absl::SkipEmpty());
    ASSERT_GE(lines.size(), 2u) << text;
    for (const std::string& line : lines) {
      EXPECT_LE(line.substr(0, line.find('\r')).size(), columns) << line;
      EXPECT_EQ(line.rfind("step ", 0), 0u) << line;
    }
  }
  EXPECT_NE(printed_on(80).find("left 0:00"), std::string::npos) << "the control: all of it fits";
}

class ProgressDisplay : public ::testing::Test {
 protected:
  ProgressDisplay() {
    if (const char* const value = std::getenv("TERM")) before_ = value;
  }
  ~ProgressDisplay() override {
    if (before_) ::setenv("TERM", before_->c_str(), 1);
    if (!before_) ::unsetenv("TERM");
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(ProgressDisplay, RedrawsWhereATerminalTakesEscapeCodes) {
  Terminal terminal(80);
  ASSERT_NE(terminal.out(), nullptr);
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(Progress::display_of(terminal.out()), Progress::Display::kTerminal);
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(Progress::display_of(terminal.out()), Progress::Display::kLines);
  ::unsetenv("TERM");
  EXPECT_EQ(Progress::display_of(terminal.out()), Progress::Display::kLines);
  ::setenv("TERM", "xterm", 1);
  std::FILE* const file = std::tmpfile();
  EXPECT_EQ(Progress::display_of(file), Progress::Display::kLines);
  std::fclose(file);
}

}  // namespace
}  // namespace gpt
