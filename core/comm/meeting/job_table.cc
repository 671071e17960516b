#include "tessera/core/comm/meeting/job_table.h"

#include <algorithm>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

Message make_reply(ReplyKind kind) { return {.kind = static_cast<uint8_t>(kind), .fields = {}}; }

Message make_reply(ReplyKind kind, std::string text) {
  return {.kind = static_cast<uint8_t>(kind), .fields = {std::move(text)}};
}

size_t fields_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::kSet:
    case RequestKind::kAdd:
      return 2;
    case RequestKind::kCompareSet:
      return 3;
    case RequestKind::kGet:
    case RequestKind::kDelete:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

Message JobTable::reply(const Message& request) {
  const auto kind = static_cast<RequestKind>(request.kind);
  const auto& fields = request.fields;
  if (kind != RequestKind::kCheck && fields.size() != fields_of(kind)) {
    return make_reply(ReplyKind::kWrong, absl::StrCat("a request of kind ", request.kind, " with ",
                                                      fields.size(), " texts"));
  }
  const std::lock_guard lock(mutex_);
  switch (kind) {
    case RequestKind::kSet:
      return set(fields[0], fields[1]);
    case RequestKind::kGet: {
      const auto found = values_.find(fields[0]);
      return found == values_.end() ? make_reply(ReplyKind::kNo)
                                    : make_reply(ReplyKind::kYes, found->second);
    }
    case RequestKind::kCompareSet:
      return compare_set(fields[0], fields[1], fields[2]);
    case RequestKind::kAdd:
      return add(fields[0], fields[1]);
    case RequestKind::kDelete: {
      const auto found = values_.find(fields[0]);
      if (found == values_.end()) return make_reply(ReplyKind::kNo);
      bytes_ -= found->first.size() + found->second.size();
      values_.erase(found);
      return make_reply(ReplyKind::kYes);
    }
    case RequestKind::kCheck: {
      const bool all = std::all_of(fields.begin(), fields.end(), [this](const std::string& key) {
        return values_.count(key) != 0;
      });
      return make_reply(all ? ReplyKind::kYes : ReplyKind::kNo);
    }
    case RequestKind::kCount:
      return make_reply(ReplyKind::kYes, absl::StrCat(values_.size()));
    default:
      return make_reply(ReplyKind::kWrong, absl::StrCat("a request of kind ", request.kind));
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
    return make_reply(ReplyKind::kWrong,
                      absl::StrCat("more than ", most_bytes_, " bytes in the job's table"));
  }
  const auto [place, is_new] = values_.try_emplace(key);
  if (is_new) bytes_ += key.size();
  bytes_ += value.size();
  bytes_ -= place->second.size();
  place->second = std::move(value);
  return make_reply(ReplyKind::kYes);
}

Message JobTable::compare_set(const std::string& key, const std::string& expected,
                              const std::string& desired) {
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  if (is_there && found->second != expected) return make_reply(ReplyKind::kYes, found->second);
  if (!is_there && !expected.empty()) return make_reply(ReplyKind::kYes, expected);
  Message result = set(key, desired);
  if (result.kind == static_cast<uint8_t>(ReplyKind::kYes)) result.fields = {desired};
  return result;
}

Message JobTable::add(const std::string& key, const std::string& number) {
  int64_t summand = 0;
  int64_t sum = 0;
  const auto found = values_.find(key);
  const bool is_number = absl::SimpleAtoi(number, &summand) &&
                         (found == values_.end() || absl::SimpleAtoi(found->second, &sum));
  if (!is_number || __builtin_add_overflow(sum, summand, &sum)) {
    return make_reply(ReplyKind::kWrong, "no number to add, or a sum beyond 64 bits");
  }
  const std::string text = absl::StrCat(sum);
  Message result = set(key, text);
  if (result.kind == static_cast<uint8_t>(ReplyKind::kYes)) result.fields = {text};
  return result;
}

}  // namespace tessera::internal
