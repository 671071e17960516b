#include "tessera/core/comm/meeting/served_table.h"

#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/protocol.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// In which the thread notices that it is to end.
constexpr auto kSlice = std::chrono::milliseconds(50);

bool is(const Message& reply, ReplyKind kind) { return reply.kind == static_cast<uint8_t>(kind); }

}  // namespace

ServedTable::ServedTable(std::unique_ptr<Server> server)
    : server_(std::move(server)),
      thread_(thread_without_signals("the table that ranks share", [this] { serve(); })) {}

ServedTable::~ServedTable() {
  is_to_end_.store(true);
  thread_.join();
}

void ServedTable::serve() {
  const auto answer = [this](const Server::Event& event) {
    const bool is_request =
        event.message && !is_message(*event.message, MessageKind::kMember, 1);  // who it is
    if (is_request) server_->send(event.member, reply(*event.message));
  };
  while (!is_to_end_.load()) {
    for (const Server::Event& event : server_->serve(kSlice)) answer(event);
  }
  server_->finish(answer);
}

Message RemoteTable::ask(RequestKind kind, std::vector<std::string> fields) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  size_t bytes = 0;
  for (const std::string& field : fields) bytes += field.size();
  if (bytes >= Framing::kMax / 2) {
    throw std::runtime_error(absl::StrCat("[rendezvous] got ", bytes,
                                          " bytes to tell the other ranks, expected less than ",
                                          Framing::kMax / 2));
  }
  const Deadline end = std::chrono::steady_clock::now() + bounded(timeout_);
  const absl::Status sent =
      connection_->send({.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)}, end);
  auto reply = sent.ok() ? connection_->receive(end) : sent;
  if (!reply.ok()) {
    failure_ = absl::StrCat(connection_->server().state(), ", where the ranks meet, ",
                            std::string(reply.status().message()));
    throw std::runtime_error(failure_);
  }
  if (!is(*reply, ReplyKind::kWrong)) return *std::move(reply);
  throw std::runtime_error(absl::StrCat(
      connection_->server().name(),
      ", where the ranks meet, refused: ", reply->fields.empty() ? "" : reply->fields[0]));
}

void RemoteTable::set(const std::string& key, const std::string& text) {
  ask(RequestKind::kSet, {key, text});
}

std::string RemoteTable::set_first(const std::string& key, const std::string& text) {
  Message reply = ask(RequestKind::kSetFirst, {key, text});
  return reply.fields.empty() ? "" : reply.fields[0];
}

std::optional<std::string> RemoteTable::get(const std::string& key) {
  Message reply = ask(RequestKind::kGet, {key});
  if (!is(reply, ReplyKind::kYes) || reply.fields.empty()) return std::nullopt;
  return std::move(reply.fields[0]);
}

bool RemoteTable::has(const std::vector<std::string>& keys) {
  return is(ask(RequestKind::kHas, keys), ReplyKind::kYes);
}

void RemoteTable::erase(const std::string& key) { ask(RequestKind::kErase, {key}); }

}  // namespace tessera::internal
