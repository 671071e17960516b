#include "tessera/core/comm/meeting/job_table.h"

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

/// Sets the text of `key`. Returns false, and changes nothing, if there is no room.
bool JobTable::put(const std::string& key, const std::string& text) {
  const auto found = texts_.find(key);
  const size_t freed = found == texts_.end() ? 0 : key.size() + found->second.size();
  if (key.size() + text.size() > most_bytes_ - (bytes_ - freed)) return false;
  texts_[key] = text;
  bytes_ += key.size() + text.size() - freed;
  return true;
}

void JobTable::remove(const std::string& key) {
  const auto found = texts_.find(key);
  if (found == texts_.end()) return;
  bytes_ -= key.size() + found->second.size();
  texts_.erase(found);
}

bool JobTable::has(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  return absl::c_all_of(keys, [this](const std::string& key) { return texts_.contains(key); });
}

Message JobTable::reply(const Message& request) {
  const auto& fields = request.fields;
  if (request.is(RequestKind::kHas, fields.size())) {
    return Message::of(has(fields) ? ReplyKind::kYes : ReplyKind::kNo);
  }
  const std::lock_guard lock(mutex_);
  if (request.is(RequestKind::kErase, 1)) {
    remove(fields[0]);
    return Message::of(ReplyKind::kYes);
  }
  const bool is_first = request.is(RequestKind::kSetFirst, 2);
  if (is_first || request.is(RequestKind::kGet, 1)) {
    const auto found = texts_.find(fields[0]);
    if (found != texts_.end()) return Message::of(ReplyKind::kYes, {found->second});
    if (!is_first) return Message::of(ReplyKind::kNo);
  }
  if (!is_first && !request.is(RequestKind::kSet, 2)) {
    return Message::of(ReplyKind::kWrong, {absl::StrCat("a request of kind ", request.kind,
                                                        " with ", fields.size(), " texts")});
  }
  if (!put(fields[0], fields[1])) {
    return Message::of(ReplyKind::kWrong,
                       {absl::StrCat("more than ", most_bytes_, " bytes in the job's table")});
  }
  return is_first ? Message::of(ReplyKind::kYes, {fields[1]}) : Message::of(ReplyKind::kYes);
}

}  // namespace tessera::internal
