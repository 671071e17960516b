#include "tessera/core/comm/meeting/job_table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

Message make_reply(ReplyKind kind, std::vector<std::string> fields = {}) {
  return {.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)};
}

}  // namespace

void JobTable::put(const std::string& key, const std::string& text) {
  const auto found = texts_.find(key);
  const size_t freed = found == texts_.end() ? 0 : key.size() + found->second.size();
  if (key.size() + text.size() > most_bytes_ - (bytes_ - freed)) {
    throw std::runtime_error(absl::StrCat("more than ", most_bytes_, " bytes in the job's table"));
  }
  texts_[key] = text;
  bytes_ += key.size() + text.size() - freed;
}

void JobTable::set(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  put(key, text);
}

std::string JobTable::set_first(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(key);
  if (found != texts_.end()) return found->second;
  put(key, text);
  return text;
}

std::optional<std::string> JobTable::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(key);
  if (found == texts_.end()) return std::nullopt;
  return found->second;
}

bool JobTable::has(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return texts_.count(key) != 0; });
}

void JobTable::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(key);
  if (found == texts_.end()) return;
  bytes_ -= key.size() + found->second.size();
  texts_.erase(found);
}

Message JobTable::reply(const Message& request) {
  const auto& fields = request.fields;
  const auto is = [&request, &fields](RequestKind kind, size_t count) {
    return request.kind == static_cast<uint8_t>(kind) && fields.size() == count;
  };
  try {
    if (is(RequestKind::kHas, fields.size())) {
      return make_reply(has(fields) ? ReplyKind::kYes : ReplyKind::kNo);
    }
    if (is(RequestKind::kSetFirst, 2)) {
      return make_reply(ReplyKind::kYes, {set_first(fields[0], fields[1])});
    }
    if (is(RequestKind::kGet, 1)) {
      const auto text = get(fields[0]);
      return text ? make_reply(ReplyKind::kYes, {*text}) : make_reply(ReplyKind::kNo);
    }
    if (is(RequestKind::kSet, 2)) {
      set(fields[0], fields[1]);
    } else if (is(RequestKind::kErase, 1)) {
      erase(fields[0]);
    } else {
      throw std::runtime_error(
          absl::StrCat("a request of kind ", request.kind, " with ", fields.size(), " texts"));
    }
    return make_reply(ReplyKind::kYes);
  } catch (const std::runtime_error& error) {
    return make_reply(ReplyKind::kWrong, {error.what()});
  }
}

}  // namespace tessera::internal
