#include "tessera/optim/plan/rate_schedule.h"

#include <bit>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/number_text.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {

void RateSchedule::set(Function rate) {
  rate_ = std::move(rate);
  forget();
}

std::string RateSchedule::apply(int64_t update, ParameterGroups& groups) {
  before_.clear();
  if (!rate_ || !groups.replaced_groups().empty()) return "";  // the step refuses such groups
  for (size_t group = 0; group < last_.size(); ++group) {
    const double now = groups.rate(group);
    if (std::bit_cast<uint64_t>(now) == std::bit_cast<uint64_t>(last_[group])) continue;
    return absl::StrCat(
        "[optim] ", groups.name(group), ": lr: got ", number_text(now),
        " from elsewhere, expected ", number_text(last_[group]),
        ", which the schedule has set; use either Engine::set_schedule() or another "
        "scheduler");
  }
  for (size_t group = 0; group < groups.size(); ++group) before_.push_back(groups.rate(group));
  had_last_ = !last_.empty();
  last_.resize(groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    try {
      last_[group] = rate_(update, groups.state_name(group));
    } catch (...) {
      take_back(groups);
      return absl::StrCat("the schedule's function threw for update ", update, ": ",
                          present_error_text());
    }
    groups.set_rate(group, last_[group]);
  }
  return "";
}

void RateSchedule::take_back(ParameterGroups& groups) {
  if (before_.empty()) return;
  for (size_t group = 0; group < groups.size(); ++group) groups.set_rate(group, before_[group]);
  had_last_ ? last_.swap(before_) : last_.clear();
  before_.clear();
}

}  // namespace tessera::internal
