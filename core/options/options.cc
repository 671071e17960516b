#include "tessera/options.h"

#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/option_table.h"
#include "tessera/core/options/resolved_options.h"

namespace tessera {
using namespace internal;

namespace {

std::string refusal(const std::string& field, const std::string& reason) {
  return absl::StrCat("[options] ", field, absl::StartsWith(reason, ".") ? "" : ": ", reason);
}

/// Returns a problem for each enumeration whose value is none of its enumerators. Such a value (a
/// number that was cast) has no text. So this is called before problems_of(), whose messages
/// contain the texts of values.
std::vector<std::string> problems_of_enumerators(const Options& options) {
  std::vector<std::string> problems;
  const auto check = [&problems](const char* name, auto value, auto last) {
    if (value <= last) return;
    problems.push_back(refusal(name, absl::StrCat("got ", static_cast<int>(value),
                                                  ", expected 0 to ", static_cast<int>(last))));
  };
  check("strategy", options.strategy, Strategy::kHybrid);
  check("buffers", options.buffers, BufferSync::kMean);
  check("reproducible", options.reproducible, Reproducible::kAnyWorldSize);
  check("offload", options.offload, Offload::kParameters);
  check("on_non_finite", options.on_non_finite.value_or(NonFinite::kStop), NonFinite::kSkip);
  return problems;
}

OptionCase case_of(const Options& options, const ParameterTable* model, const WorldTraits* world) {
  OptionCase known{.options = options,
                   .model = model,
                   .world = world,
                   .strategy = std::string(to_string(options.strategy))};
  const bool is_hybrid = options.strategy == Strategy::kHybrid;
  if (is_hybrid && !options.degrees.has_value()) return known;
  known.shape = is_hybrid ? *options.degrees : placement(options, kManyRanks);
  if (world == nullptr) return known;
  if (is_hybrid && !problem_of(*known.shape, world->size).empty()) return known;
  known.degrees = placement(options, world->size);
  return known;
}

/// Checks each field, then pairs of options that exclude each other.
std::vector<std::string> problems_of(const OptionCase& known) {
  std::vector<std::string> problems;
  for (const OptionField& field : option_fields()) {
    const RefuseOption refuse = [&](const std::string& reason) {
      problems.push_back(refusal(field.name, reason));
    };
    if (asks(field, known.options)) {
      if (const std::string reason = ignored(field, known); !reason.empty()) refuse(reason);
    }
    if (const std::string reason = out_of_range(field, known.options); !reason.empty()) {
      refuse(reason);
    }
    if (field.check != nullptr) field.check(known, refuse);
  }
  const auto asks_for = [&](const char* name) {
    for (const OptionField& field : option_fields()) {
      if (std::string_view(field.name) == name) return asks(field, known.options);
    }
    TORCH_INTERNAL_ASSERT(false, "no option ", name);
  };
  for (const OptionPair& pair : option_pairs()) {
    const bool stands_in_the_way =
        pair.applies != nullptr ? pair.applies(known.options) : asks_for(pair.other);
    if (!stands_in_the_way || !asks_for(pair.option)) continue;
    problems.push_back(
        refusal(pair.option, absl::StrCat("is set beside ", pair.other, ", which ", pair.reason,
                                          "; leave one of the two out")));
  }
  return problems;
}

}  // namespace

std::string_view to_string(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kParameters:
      return "parameters";
  }
  TORCH_INTERNAL_ASSERT(false);
}

absl::Status validate(const Options& options) {
  return validate(options, /*model=*/nullptr, /*world=*/nullptr);
}

namespace internal {

absl::Status validate(const Options& options, const ParameterTable* model,
                      const WorldTraits* world) {
  std::vector<std::string> problems = problems_of_enumerators(options);
  if (problems.empty()) problems = problems_of(case_of(options, model, world));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace internal
}  // namespace tessera
