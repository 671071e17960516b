// Operators that write tensors although their schemas do not say so: running statistics.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/access/access_key.h"
#include "tessera/core/access/access_observer.h"

namespace tessera::internal {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;

/// Records whether an operator announced a write.
class WriteNote final : public AccessTarget, public AccessTarget::Pin {
 public:
  AccessTarget::Pin& pin(Use use) noexcept override {
    is_written = is_written || use == Use::kWrite;
    return *this;
  }
  void unpin(Use) noexcept override {}

  bool is_written = false;
};

constexpr int64_t kChannels = 3;

bool is_statistic(const std::string& argument) {
  return argument == "running_mean" || argument == "running_var";
}

/// An argument of a normalisation over [2, kChannels, 4].
c10::IValue value_for(const c10::Argument& argument, bool flag) {
  const std::string& name = argument.name();
  const std::string type = argument.type()->str();
  if (absl::StrContains(type, "Tensor")) {
    if (is_statistic(name)) return at::full({kChannels}, 0.5);
    if (name == "input" || name == "self" || absl::StartsWith(name, "grad")) {
      return at::rand({2, kChannels, 4});
    }
    if (absl::StartsWith(name, "reserve")) return at::empty({0}, at::kByte);
    if (absl::StartsWith(name, "out")) return at::empty({0});
    return at::full({kChannels}, 1.5);
  }
  if (absl::StrContains(type, "bool[]")) return c10::List<bool>({true, true, true});
  if (type == "bool") {
    return name == "training" || name == "train" || name == "use_input_stats" ? flag : false;
  }
  if (absl::StrContains(type, "float")) return 0.1;
  if (absl::StrContains(type, "int")) return int64_t{name == "count" ? 8 : 0};
  return argument.default_value().value_or(c10::IValue());
}

struct Outcome {
  bool ran = false;
  bool changed = false;
  bool was_announced = false;
};

Outcome call(const c10::OperatorHandle& op, bool flag) {
  std::vector<c10::IValue> stack;
  std::vector<at::Tensor> statistics, before;
  std::vector<AccessObserver::Watched> watched;
  const auto note = std::make_shared<WriteNote>();
  for (const c10::Argument& argument : op.schema().arguments()) {
    stack.push_back(value_for(argument, flag));
    if (!is_statistic(argument.name())) continue;
    statistics.push_back(stack.back().toTensor());
    before.push_back(statistics.back().clone());
    add_access_key(statistics.back());
    watched.push_back({statistics.back().storage(), note});
  }
  Outcome outcome;
  {
    const AccessObserver observer(watched);
    try {
      op.callBoxed(stack);
      outcome.ran = true;
    } catch (const std::exception&) {  // an operator of another device
    }
  }
  for (size_t i = 0; i < statistics.size(); ++i) {
    outcome.changed = outcome.changed || !at::equal(statistics[i], before[i]);
  }
  outcome.was_announced = note->is_written;
  return outcome;
}

TEST(HiddenWrites, OfRunningStatisticsAreAllKnown) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> ran, wrote;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value()) continue;
    bool has_statistics = false;
    for (const c10::Argument& argument : op->schema().arguments()) {
      has_statistics = has_statistics || is_statistic(argument.name());
    }
    // Skip out= overloads: their results need sizes that no schema tells, or memory is overwritten.
    if (!has_statistics || absl::StrContains(name.overload_name, "out")) continue;
    for (const bool flag : {true, false}) {
      const Outcome outcome = call(*op, flag);
      const std::string what = absl::StrCat(toString(name), flag ? " training" : "");
      if (outcome.ran) ran.push_back(what);
      if (outcome.changed) {
        wrote.push_back(what);
        EXPECT_TRUE(outcome.was_announced) << what << " writes without a word";
      }
      if (outcome.ran && !outcome.changed) {
        EXPECT_FALSE(outcome.was_announced) << what << " writes nothing";
      }
    }
  }
  EXPECT_THAT(wrote, IsSupersetOf({"aten::batch_norm training", "aten::instance_norm training",
                                   "aten::native_batch_norm training"}))
      << "the control: these are called, and write";
  EXPECT_THAT(ran, Contains("aten::batch_norm"));
}

}  // namespace
}  // namespace tessera::internal
