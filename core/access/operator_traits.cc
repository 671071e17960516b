#include "tessera/core/access/operator_traits.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::internal {
namespace {

/// Batch and instance normalisation write running statistics, although most of their schemas do not
/// declare it. The test HiddenWrites calls every operator that has such arguments.
void find_statistics(const c10::FunctionSchema& schema, OperatorTraits& traits) {
  const std::string& name = schema.name();
  // The first name also matches batch_norm_gather_stats_with_counts.
  const bool gathers = name.find("batch_norm_gather_stats") != std::string::npos ||
                       name.find("batch_norm_update_stats") != std::string::npos;
  uint64_t statistics = 0;
  bool has_condition = false;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const std::string& argument = arguments[i].name();
    if (argument == "running_mean" || argument == "running_var") {
      statistics |= uint64_t{1} << i;
    } else if (argument == "training" || argument == "train" || argument == "use_input_stats") {
      traits.when = static_cast<uint8_t>(i);
      has_condition = true;
    }
  }
  // Functional variants return the statistics instead of writing them.
  const bool reads =
      name.find("backward") != std::string::npos || name.find("functional") != std::string::npos;
  if (!gathers && (!has_condition || reads)) return;
  traits.statistics = statistics;
  // Some schemas declare the write for every call, although evaluation does not write.
  traits.written_inputs &= ~statistics;
}

OperatorTraits make_traits(const c10::FunctionSchema& schema) {
  OperatorTraits traits;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written_inputs |= uint64_t{1} << i;
  }
  find_statistics(schema, traits);
  traits.makes_views =
      traits.written_inputs == 0 && traits.statistics == 0 && !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    if (result.alias_info() == nullptr) traits.makes_views = false;
  }
  return traits;
}

/// An operator that a thread ran lately, in a table indexed by a hash of the name's address. The
/// table needs no destructor, because operators may run after a thread's objects are destroyed.
struct RecentOperator {
  const char* name = nullptr;
  OperatorTraits traits;
};
constexpr size_t kRecentOperators = 512;
constexpr size_t kPlacesPerName = 4;  // of a full table the first of these is used again
constinit thread_local std::array<RecentOperator, kRecentOperators> recent_operators{};

/// Returns the place that holds the operator with this name, or else the one that is to hold it.
RecentOperator& recent_of(const char* name) {
  const auto address = reinterpret_cast<uintptr_t>(name);
  const size_t first = (address >> 4) ^ (address >> 13);
  for (size_t i = 0; i < kPlacesPerName; ++i) {
    RecentOperator& recent = recent_operators[(first + i) % kRecentOperators];
    if (recent.name == name || recent.name == nullptr) return recent;
  }
  return recent_operators[first % kRecentOperators];
}

/// Returns the traits that this thread keeps for the operator with this name; null if there are
/// none.
const OperatorTraits* find_kept(const char* name) {
  const RecentOperator& recent = recent_of(name);
  return recent.name == name ? &recent.traits : nullptr;
}

OperatorTraits keep(const c10::FunctionSchema& schema, const char* name) {
  return (recent_of(name) = {name, make_traits(schema)}).traits;
}

}  // namespace

OperatorTraits traits_of(const c10::FunctionSchema& schema) {
  const char* const name = schema.name().c_str();
  const OperatorTraits* const kept = find_kept(name);
  return kept != nullptr ? *kept : keep(schema, name);
}

OperatorTraits traits_of(const at::RecordFunction& function) {
  const char* const name = function.name();
  if (const OperatorTraits* const kept = find_kept(name)) return *kept;
  const auto schema = function.operator_schema();  // a copy
  if (schema.has_value()) return keep(*schema, name);
  // A record without a schema is either autograd's second record of detach or a range that the user
  // marks. Nothing is kept for it, because the address of a user's name may later hold another
  // name.
  return {.makes_views = std::string_view(name) == "detach"};
}

}  // namespace tessera::internal
