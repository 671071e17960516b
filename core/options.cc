#include "tessera/core/options.h"

#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/number_text.h"

namespace tessera {
namespace {

void check_bucket_bytes(const char* field, int64_t bytes, std::vector<std::string>& problems) {
  constexpr int64_t kLeast = int64_t{1} << 10;
  constexpr int64_t kMost = int64_t{2} << 30;
  if (bytes < kLeast || bytes > kMost) {
    problems.push_back(
        absl::StrCat(field, ": got ", bytes,
                     "; allowed 1 KiB (1024) to 2 GiB (2147483648); the default suits "
                     "most models"));
  }
}

}  // namespace

absl::Status validate(const Options& options) {
  std::vector<std::string> problems;
  // Written so that NaN fails too.
  if (!(options.max_grad_norm > 0.0)) {
    problems.push_back(
        absl::StrCat("max_grad_norm: got ", number_text(options.max_grad_norm),
                     "; allowed (0, infinity]; leave it out to train without clipping"));
  }
  check_bucket_bytes("bucket_bytes", options.bucket_bytes, problems);
  check_bucket_bytes("first_bucket_bytes", options.first_bucket_bytes, problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("[options] ", absl::StrJoin(problems, "\n[options] ")));
}

std::vector<std::string> lines(const Options& options) {
  const std::string_view strategy = to_string(options.strategy);
  return {absl::StrCat("strategy ", absl::string_view(strategy.data(), strategy.size())),
          absl::StrCat("max_grad_norm ", number_text(options.max_grad_norm)),
          absl::StrCat("bucket_bytes ", options.bucket_bytes),
          absl::StrCat("first_bucket_bytes ", options.first_bucket_bytes),
          absl::StrCat("poison_freed ", options.poison_freed ? 1 : 0)};
}

}  // namespace tessera
