#include "tessera/examples/gpt/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <absl/strings/str_format.h>

#include "tessera/memory_meter.h"

namespace gpt {
namespace {

constexpr std::chrono::milliseconds kRedrawEvery(100);
constexpr double kSmoothing = 0.9;

/// The number of columns of the terminal `out`; a large number if unknown.
size_t columns_of(std::FILE* out) {
  winsize size = {};
  const bool is_known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 1000;
}

}  // namespace

std::string ProgressLine::text() const {
  const auto left = static_cast<int64_t>(std::llround(left_s));
  const std::string memory =
      pss_bytes < 0 ? "?" : absl::StrFormat("%d", pss_bytes / (int64_t{1} << 20));
  return absl::StrFormat("step %*d/%d  loss %.4f  lr %.2e  %.0f tok/s  %s MiB  left %d:%02d",
                         static_cast<int>(std::to_string(steps).size()), step, steps, loss, rate,
                         tokens_per_s, memory, left / 60, left % 60);
}

Progress::Progress(std::FILE* out, Display display, const Options& options)
    : out_(out),
      display_(display),
      options_(options),
      last_step_(Clock::now()),
      steps_done_(options.steps_done) {}

Progress::Display Progress::display_of(std::FILE* out) {
  const char* const terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return ::isatty(::fileno(out)) == 1 && !is_dumb ? Display::kTerminal : Display::kLines;
}

void Progress::report(int64_t step, double loss, double rate) {
  const Clock::time_point now = Clock::now();
  const double this_step_s = std::chrono::duration<double>(now - last_step_).count() /
                             static_cast<double>(std::max<int64_t>(1, step - steps_done_));
  // The first steps allocate and measure, and would distort the mean for long.
  const bool is_new = steps_done_ <= options_.steps_done + 1;
  steps_done_ = step;
  last_step_ = now;
  step_s_ = is_new ? this_step_s : kSmoothing * step_s_ + (1.0 - kSmoothing) * this_step_s;
  if (!is_due(step)) return;
  last_draw_ = now;
  const std::string text =
      ProgressLine{
          .step = step,
          .steps = options_.steps,
          .loss = loss,
          .rate = rate,
          .tokens_per_s = static_cast<double>(options_.tokens_per_step) / std::max(step_s_, 1e-9),
          .pss_bytes = tessera::process_pss_bytes(),
          .left_s = step_s_ * static_cast<double>(options_.steps - step)}
          .text();
  if (display_ == Display::kTerminal) {
    // A line that wraps could not be redrawn.
    std::fprintf(out_, "\r\033[K%s", text.substr(0, columns_of(out_)).c_str());
    is_line_open_ = true;
    if (step == options_.steps) pause();
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
}

void Progress::pause() {
  if (is_line_open_) std::fputc('\n', out_);
  is_line_open_ = false;
}

void Progress::resume() { last_step_ = Clock::now(); }

bool Progress::is_due(int64_t step) const {
  if (step == options_.steps_done + 1 || step == options_.steps) return true;
  return display_ == Display::kTerminal ? last_step_ - last_draw_ >= kRedrawEvery
                                        : step % options_.log_every == 0;
}

}  // namespace gpt
