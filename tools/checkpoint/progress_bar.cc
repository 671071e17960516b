#include "tessera/tools/checkpoint/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <absl/strings/str_format.h>

namespace tessera::internal {

namespace {

constexpr std::chrono::milliseconds kRedrawEvery(100);

bool can_redraw(std::FILE* out) {
  const char* const terminal = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

/// The number of columns of the terminal `out`; more than any line if unknown.
size_t columns_of(std::FILE* out) {
  winsize size = {};
  const bool is_known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 1000;
}

}  // namespace

ProgressBar::ProgressBar(std::string what, int64_t total_bytes, std::FILE* out)
    : what_(std::move(what)),
      total_(total_bytes),
      out_(out),
      is_terminal_(can_redraw(out)),
      drawn_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\033[K", out_);
}

void ProgressBar::add(int64_t bytes) {
  done_ += bytes;
  const Clock::time_point now = Clock::now();
  if (!is_terminal_ || now - drawn_ < kRedrawEvery) return;
  drawn_ = now;
  is_drawn_ = true;
  std::fprintf(out_, "\r\033[K%s", line(done_, columns_of(out_)).c_str());
  std::fflush(out_);
}

std::string ProgressBar::line(int64_t done, size_t columns) const {
  constexpr int kWidth = 30;
  const double part = total_ > 0 ? static_cast<double>(done) / static_cast<double>(total_) : 1.0;
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  std::string text = absl::StrFormat("%s [%s%s] %3.0f %%  %d of %d MiB", what_,
                                     std::string(static_cast<size_t>(filled), '='),
                                     std::string(static_cast<size_t>(kWidth - filled), ' '),
                                     std::min(100.0, 100.0 * part), done >> 20, total_ >> 20);
  return text.substr(text.size() - std::min(text.size(), columns));
}

}  // namespace tessera::internal
