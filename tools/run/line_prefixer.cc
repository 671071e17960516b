#include "tessera/tools/run/line_prefixer.h"

#include <algorithm>
#include <utility>

namespace tessera::internal {

LinePrefixer::LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

void LinePrefixer::add(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t line = end == std::string_view::npos ? bytes.size() : end;
    const size_t taken = std::min(line, kMaxLine_bytes - partial_.size());
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (taken == line && end != std::string_view::npos) {
      bytes.remove_prefix(1);
      out.append(prefix_).append(partial_).push_back('\n');
      partial_.clear();
    } else if (partial_.size() == kMaxLine_bytes) {
      finish(out);
    }
  }
}

void LinePrefixer::finish(std::string& out) {
  if (partial_.empty()) return;
  out.append(prefix_).append(partial_).push_back('\n');
  partial_.clear();
}

}  // namespace tessera::internal
