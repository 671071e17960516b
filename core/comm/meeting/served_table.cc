#include "tessera/core/comm/meeting/served_table.h"

#include <stdexcept>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// How long serve() waits for requests at a time. After each wait the thread checks whether it is to
// end.
constexpr auto kSlice = std::chrono::milliseconds(50);

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
        event.message && !event.message->is(MessageKind::kMember, 1);  // kMember is the Hello
    if (is_request) server_->send(event.member, reply(*event.message));
  };
  while (!is_to_end_.load()) {
    for (const Server::Event& event : server_->serve(kSlice)) answer(event);
  }
  server_->finish(answer);
}

Message RemoteTable::reply(const Message& request) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  size_t bytes = 0;
  for (const std::string& field : request.fields) bytes += field.size();
  if (bytes >= Framing::kMax / 2) {
    throw std::runtime_error(absl::StrCat("[rendezvous] got ", bytes,
                                          " bytes to tell the other ranks, expected less than ",
                                          Framing::kMax / 2));
  }
  const Deadline end = std::chrono::steady_clock::now() + bounded(timeout_);
  const absl::Status sent = connection_->send(request, end);
  auto answer = sent.ok() ? connection_->receive(end) : sent;
  if (answer.ok()) return *std::move(answer);
  failure_ = absl::StrCat(connection_->server().state(), ", where the ranks meet, ",
                          std::string(answer.status().message()));
  throw std::runtime_error(failure_);
}

}  // namespace tessera::internal
