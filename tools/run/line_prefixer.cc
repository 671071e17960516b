#include "tessera/tools/run/line_prefixer.h"

#include <algorithm>
#include <utility>

namespace tessera::internal {

LinePrefixer::LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

void LinePrefixer::add(std::string_view bytes, Clock::time_point now, Sink& out) {
  while (!bytes.empty()) {
    const size_t text = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const size_t taken = std::min(text, kMaxLine_bytes - kept_.size());
    if (kept_.empty()) kept_since_ = now;
    kept_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (taken == text && !bytes.empty()) {
      const std::string_view end = bytes.substr(0, bytes.starts_with("\r\n") ? 2 : 1);
      bytes.remove_prefix(end.size());
      append(end, out);
    } else if (kept_.size() == kMaxLine_bytes) {
      append("\n", out);
    }
  }
}

std::optional<LinePrefixer::Clock::time_point> LinePrefixer::due() const {
  if (kept_.empty()) return std::nullopt;
  return kept_since_ + kPatience;
}

void LinePrefixer::show_due(Clock::time_point now, Sink& out) {
  if (!kept_.empty() && now - kept_since_ >= kPatience) append("", out);
}

void LinePrefixer::finish(Sink& out) {
  if (!kept_.empty() || is_begun_) append("\n", out);
}

/// Appends the kept text and `end`: "\n", "\r\n" or "\r", or "" if the line continues.
void LinePrefixer::append(std::string_view end, Sink& out) {
  const bool is_open = out.has_open_line_of(this);
  if (kept_.empty() && is_begun_ && !is_open) {
    is_begun_ = false;  // another writer has ended the line
    return;
  }
  if (kept_.empty() && !is_begun_ && end == "\r") {
    begins_with_return_ = true;  // there is no text to overwrite yet, and none to prefix
    return;
  }
  std::string text;
  if (std::exchange(begins_with_return_, false)) text = "\r";
  const bool goes_on = is_open && (!is_overwritten_ || kept_.empty());
  if (!goes_on) text.insert(kept_.empty() ? 0 : text.size(), prefix_);
  text.append(kept_).append(end);
  out.append(text, this);
  kept_.clear();
  is_begun_ = !end.ends_with('\n');
  is_overwritten_ = end == "\r";
}

}  // namespace tessera::internal
