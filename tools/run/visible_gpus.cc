#include "tessera/tools/run/visible_gpus.h"

#include <glob.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera::internal {

int count_visible_gpus(const std::vector<std::string>& inherited, const std::string& devices) {
  int count = 0;
  for (absl::string_view list : inherited) {
    if (!absl::ConsumePrefix(&list, "CUDA_VISIBLE_DEVICES=")) continue;
    for (const absl::string_view gpu : absl::StrSplit(list, ',')) {
      const absl::string_view name = absl::StripAsciiWhitespace(gpu);
      if (name.empty() || name[0] == '-') break;
      ++count;
    }
    return count;
  }
  glob_t found{};
  const std::string pattern = devices + "/nvidia[0-9]*";
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) count = static_cast<int>(found.gl_pathc);
  globfree(&found);
  return count;
}

}  // namespace tessera::internal
