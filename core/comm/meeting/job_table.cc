#include "tessera/core/comm/meeting/job_table.h"

#include <algorithm>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

Message told(Told kind) { return {.kind = static_cast<uint8_t>(kind), .fields = {}}; }

Message told(Told kind, std::string text) {
  return {.kind = static_cast<uint8_t>(kind), .fields = {std::move(text)}};
}

size_t fields_of(Ask ask) {
  switch (ask) {
    case Ask::kSet:
    case Ask::kAdd:
      return 2;
    case Ask::kCompareSet:
      return 3;
    case Ask::kGet:
    case Ask::kDelete:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

Message JobTable::reply(const Message& request) {
  const auto ask = static_cast<Ask>(request.kind);
  const auto& fields = request.fields;
  if (ask != Ask::kCheck && fields.size() != fields_of(ask)) {
    return told(Told::kWrong, absl::StrCat("a request of kind ", request.kind, " with ",
                                           fields.size(), " texts"));
  }
  const std::lock_guard lock(mutex_);
  switch (ask) {
    case Ask::kSet:
      return set(fields[0], fields[1]);
    case Ask::kGet: {
      const auto found = values_.find(fields[0]);
      return found == values_.end() ? told(Told::kNo) : told(Told::kYes, found->second);
    }
    case Ask::kCompareSet:
      return compare_set(fields[0], fields[1], fields[2]);
    case Ask::kAdd:
      return add(fields[0], fields[1]);
    case Ask::kDelete: {
      const auto found = values_.find(fields[0]);
      if (found == values_.end()) return told(Told::kNo);
      bytes_ -= found->first.size() + found->second.size();
      values_.erase(found);
      return told(Told::kYes);
    }
    case Ask::kCheck: {
      const bool all = std::all_of(fields.begin(), fields.end(), [this](const std::string& key) {
        return values_.count(key) != 0;
      });
      return told(all ? Told::kYes : Told::kNo);
    }
    case Ask::kCount:
      return told(Told::kYes, absl::StrCat(values_.size()));
    default:
      return told(Told::kWrong, absl::StrCat("a request of kind ", request.kind));
  }
}

void JobTable::set_unless_there(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (values_.count(key) == 0) set(key, value);
}

void JobTable::lend(const std::string& key, int fd) {
  const std::lock_guard lock(mutex_);
  lent_[key] = fd;
}

std::optional<int> JobTable::lent(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(key);
  if (found == lent_.end()) return std::nullopt;
  return found->second;
}

bool JobTable::fits(const std::string& key, const std::string& value) const {
  return key.size() + value.size() <= most_bytes_ - bytes_;
}

Message JobTable::set(const std::string& key, std::string value) {
  if (!fits(key, value)) {
    return told(Told::kWrong, absl::StrCat("more than ", most_bytes_, " bytes in the job's table"));
  }
  const auto [place, is_new] = values_.try_emplace(key);
  if (is_new) bytes_ += key.size();
  bytes_ += value.size();
  bytes_ -= place->second.size();
  place->second = std::move(value);
  return told(Told::kYes);
}

Message JobTable::compare_set(const std::string& key, const std::string& expected,
                              const std::string& desired) {
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  if (is_there && found->second != expected) return told(Told::kYes, found->second);
  if (!is_there && !expected.empty()) return told(Told::kYes, expected);
  Message result = set(key, desired);
  if (result.kind == static_cast<uint8_t>(Told::kYes)) result.fields = {desired};
  return result;
}

Message JobTable::add(const std::string& key, const std::string& number) {
  int64_t summand = 0;
  int64_t sum = 0;
  const auto found = values_.find(key);
  const bool is_number = absl::SimpleAtoi(number, &summand) &&
                         (found == values_.end() || absl::SimpleAtoi(found->second, &sum));
  if (!is_number || __builtin_add_overflow(sum, summand, &sum)) {
    return told(Told::kWrong, "no number to add, or a sum beyond 64 bits");
  }
  const std::string text = absl::StrCat(sum);
  Message result = set(key, text);
  if (result.kind == static_cast<uint8_t>(Told::kYes)) result.fields = {text};
  return result;
}

}  // namespace tessera::internal
