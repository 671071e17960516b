#include "tessera/examples/memory_compare/configuration.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

namespace memory_compare {

using tessera::Degrees;
using tessera::Strategy;

std::string to_string(const Configuration& configuration) {
  std::string text(tessera::to_string(configuration.strategy));
  if (configuration.degrees.has_value())
    absl::StrAppend(&text, ":", tessera::to_string(*configuration.degrees));
  if (configuration.reshard_after_forward.has_value()) {
    absl::StrAppend(&text, ":", *configuration.reshard_after_forward);
  }
  if (configuration.is_apart) absl::StrAppend(&text, ":apart");
  return text;
}

absl::StatusOr<Configuration> parse_configuration(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("[memory_compare] --configurations: got '", text, "', ", why));
  };
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  const bool is_apart = parts.size() > 1 && parts.back() == "apart";
  if (is_apart) parts.pop_back();
  const absl::StatusOr<Strategy> strategy = tessera::parse_strategy(parts[0]);
  if (!strategy.ok()) return bad(std::string(strategy.status().message()));
  Configuration configuration{
      .strategy = *strategy, .degrees = {}, .reshard_after_forward = {}, .is_apart = is_apart};
  size_t next = 1;
  if (configuration.strategy == Strategy::kHybrid) {
    if (parts.size() < 2) return bad("expected degrees after it, as in hybrid:2,2,4");
    const absl::StatusOr<Degrees> degrees = tessera::parse_degrees(parts[next++]);
    if (!degrees.ok()) return bad(std::string(degrees.status().message()));
    configuration.degrees = *degrees;
  }
  if (next < parts.size()) {
    int ranks = 0;
    if (!absl::SimpleAtoi(parts[next], &ranks) || ranks < 1) {
      return bad("expected a number of ranks from 1 after the last colon, as in zero3:1");
    }
    configuration.reshard_after_forward = ranks;
    ++next;
  }
  if (next < parts.size())
    return bad("expected strategy[:degrees][:reshard_after_forward][:apart]");
  return configuration;
}

absl::StatusOr<std::vector<Configuration>> parse_configurations(const std::string& text) {
  std::vector<Configuration> configurations;
  std::vector<std::string> problems;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(text, ' ', absl::SkipEmpty()))) {
    const absl::StatusOr<Configuration> configuration = parse_configuration(part);
    if (configuration.ok()) {
      configurations.push_back(*configuration);
    } else {
      problems.emplace_back(configuration.status().message());
    }
  }
  if (problems.empty()) return configurations;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

std::vector<Configuration> default_configurations(int ranks, c10::DeviceType device) {
  std::vector<Configuration> configurations;
  const auto add = [&configurations](Strategy strategy, std::optional<Degrees> degrees = {},
                                     std::optional<int> reshard_after_forward = {}) {
    configurations.push_back({strategy, degrees, reshard_after_forward});
  };
  const auto add_apart = [&configurations](Strategy strategy,
                                           std::optional<int> reshard_after_forward = {}) {
    configurations.push_back({strategy, {}, reshard_after_forward, /*is_apart=*/true});
  };
  add(Strategy::kDdp);
  if (ranks == 1) return configurations;
  add(Strategy::kZero1);
  add(Strategy::kZero2);
  add(Strategy::kZero3);
  if (device == c10::DeviceType::CPU) {
    add_apart(Strategy::kZero1);
    add_apart(Strategy::kZero2);
    add_apart(Strategy::kZero3);
    add_apart(Strategy::kZero3, 1);
  } else {
    add(Strategy::kZero3, {}, 1);
  }
  int largest = ranks - 1;
  while (ranks % largest != 0) --largest;
  if (largest == 1) return configurations;
  add(Strategy::kHybrid, Degrees{largest, largest, largest});
  add(Strategy::kHybrid, Degrees{largest, ranks, ranks});
  add(Strategy::kHybrid, Degrees{1, largest, ranks});
  return configurations;
}

}  // namespace memory_compare
