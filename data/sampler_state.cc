#include "tessera/sampler_state.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera::data {
namespace {

// Increment it if, for the same numbers(), an epoch would have another order, or if one of
// numbers() gets another meaning.
constexpr int64_t kVersion = 1;

void require(bool is_good, const char* name, int64_t value, const std::string& expected) {
  TORCH_CHECK(is_good, "[sampler] state: ", name, ": got ", value, ", expected ", expected);
}

}  // namespace

std::map<std::string, int64_t> SamplerState::numbers() const {
  return {{"version", kVersion}, {"size", size},   {"seed", seed},
          {"shuffle", shuffle},  {"epoch", epoch}, {"cursor", cursor}};
}

SamplerState SamplerState::from_numbers(const std::map<std::string, int64_t>& numbers) {
  const std::map<std::string, int64_t> known = SamplerState().numbers();
  std::string problems;
  for (const auto& [name, value] : known) {
    if (!numbers.contains(name)) absl::StrAppend(&problems, " '", name, "' is missing;");
  }
  for (const auto& [name, value] : numbers) {
    if (!known.contains(name)) absl::StrAppend(&problems, " '", name, "' is unknown;");
  }
  TORCH_CHECK(problems.empty(), "[sampler] state:", problems,
              " expected the numbers that SamplerState::numbers() wrote");
  const int64_t version = numbers.at("version");
  require(version == kVersion, "version", version, absl::StrCat(kVersion));
  const int64_t shuffle = numbers.at("shuffle");
  require(shuffle == 0 || shuffle == 1, "shuffle", shuffle, "0 or 1");
  const SamplerState state = {.size = numbers.at("size"),
                              .seed = numbers.at("seed"),
                              .shuffle = shuffle == 1,
                              .epoch = numbers.at("epoch"),
                              .cursor = numbers.at("cursor")};
  require(state.size >= 1, "size", state.size, "1 or more");
  require(state.epoch >= 0, "epoch", state.epoch, "0 or more");
  require(state.cursor >= 0 && state.cursor <= state.size, "cursor", state.cursor,
          absl::StrCat("0 to ", state.size));
  return state;
}

}  // namespace tessera::data
