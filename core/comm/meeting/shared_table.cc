#include "tessera/core/comm/meeting/shared_table.h"

#include <stdexcept>
#include <utility>

namespace tessera::internal {

Message SharedTable::ask(RequestKind kind, std::vector<std::string> fields) {
  Message answer = reply(Message::of(kind, std::move(fields)));
  if (!answer.is(ReplyKind::kWrong, 1)) return answer;
  throw std::runtime_error(answer.fields[0]);
}

void SharedTable::set(const std::string& key, const std::string& text) {
  ask(RequestKind::kSet, {key, text});
}

std::string SharedTable::set_first(const std::string& key, const std::string& text) {
  const Message answer = ask(RequestKind::kSetFirst, {key, text});
  return answer.fields.empty() ? "" : answer.fields[0];
}

std::optional<std::string> SharedTable::get(const std::string& key) {
  Message answer = ask(RequestKind::kGet, {key});
  if (!answer.is(ReplyKind::kYes, 1)) return std::nullopt;
  return std::move(answer.fields[0]);
}

bool SharedTable::has(const std::vector<std::string>& keys) {
  return ask(RequestKind::kHas, keys).is(ReplyKind::kYes, 0);
}

void SharedTable::erase(const std::string& key) { ask(RequestKind::kErase, {key}); }

}  // namespace tessera::internal
