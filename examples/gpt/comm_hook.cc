#include "tessera/examples/gpt/comm_hook.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/power_sgd.h"

namespace gpt {

namespace {

constexpr std::pair<CommHookName, const char*> kNames[] = {{CommHookName::kNone, "none"},
                                                           {CommHookName::kAllReduce, "all_reduce"},
                                                           {CommHookName::kNoop, "noop"},
                                                           {CommHookName::kPowerSgd, "powersgd"}};

}  // namespace

bool AbslParseFlag(absl::string_view text, CommHookName* name, std::string* error) {
  for (const auto& [value, spelled] : kNames) {
    if (text != spelled) continue;
    *name = value;
    return true;
  }
  *error = absl::StrCat("got '", text, "', expected none, all_reduce, noop or powersgd");
  return false;
}

std::string AbslUnparseFlag(CommHookName name) {
  for (const auto& [value, spelled] : kNames) {
    if (name == value) return spelled;
  }
  return "none";
}

std::shared_ptr<tessera::CommHook> make_comm_hook(CommHookName name, int64_t rank, int64_t start) {
  switch (name) {
    case CommHookName::kNone:
      break;
    case CommHookName::kAllReduce:
      return tessera::all_reduce_hook();
    case CommHookName::kNoop:
      return tessera::noop_hook();
    case CommHookName::kPowerSgd:
      return tessera::power_sgd_hook(
          {.matrix_approximation_rank = rank, .start_power_sgd_iter = start});
  }
  return nullptr;
}

}  // namespace gpt
