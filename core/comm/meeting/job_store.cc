#include "tessera/core/comm/meeting/job_store.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMaxStorePause = std::chrono::milliseconds(20);

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Whether those who come can be given descriptors.
bool is_local(const Listener& listener) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return ::getsockopt(listener.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         domain == AF_UNIX;
}

bool is(const Message& reply, ReplyKind kind) { return reply.kind == static_cast<uint8_t>(kind); }

}  // namespace

JobStore::JobStore(std::unique_ptr<Listener> listener, const Credentials& credentials,
                   HostProcess self)
    : self_(std::move(self)),
      can_lend_(is_local(*listener)),
      table_(std::make_shared<JobTable>()),
      server_(std::make_unique<JobServer>(std::move(listener), table_, credentials, self_)) {}

JobStore::JobStore(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

JobStore::~JobStore() = default;

const HostProcess& JobStore::host() const { return is_host() ? self_ : connection_->host(); }

Deadline JobStore::deadline() const { return Clock::now() + bounded(getTimeout()); }

void JobStore::fail(const absl::Status& status) const {
  std::string text =
      absl::StrCat(host().text(), ", where the ranks meet, ", std::string(status.message()));
  if (absl::IsDeadlineExceeded(status)) {
    const std::string activity = host().activity();
    absl::StrAppend(&text, activity.empty() ? "" : " ", activity);
  }
  C10_THROW_ERROR(DistStoreError, text);
}

Message JobStore::ask(RequestKind kind, std::vector<std::string> fields) {
  Message request{.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)};
  Message reply;
  if (is_host()) {
    reply = table_->reply(request);
  } else {
    size_t bytes = 0;
    for (const std::string& field : request.fields) bytes += field.size();
    TORCH_CHECK_WITH(DistStoreError, bytes < Framing::kMax / 2, "[rendezvous] got ", bytes,
                     " bytes to tell the other ranks, expected less than ", Framing::kMax / 2);
    auto received = connection_->ask(request, deadline());
    if (!received.ok()) fail(received.status());
    reply = *std::move(received);
  }
  if (is(reply, ReplyKind::kWrong)) {
    fail(absl::InternalError(
        absl::StrCat("refused: ", reply.fields.empty() ? "" : reply.fields[0])));
  }
  return reply;
}

void JobStore::set_when_gone(const std::string& key, const std::string& value) {
  if (!is_host()) ask(RequestKind::kOnLoss, {key, value});
}

void JobStore::lend(const std::string& key, int fd) {
  if (can_lend_) table_->lend(key, fd);
}

FileDescriptor JobStore::borrow(const std::string& key) {
  auto borrowed = connection_->borrow(
      {.kind = static_cast<uint8_t>(RequestKind::kBorrow), .fields = {key}}, deadline());
  if (!borrowed.ok()) fail(borrowed.status());
  return std::move(borrowed->descriptor);
}

void JobStore::stop_listening() {
  if (is_host()) server_->stop_listening();
}

int64_t JobStore::rejected() const { return is_host() ? server_->rejected() : 0; }

c10::intrusive_ptr<c10d::Store> JobStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void JobStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(RequestKind::kSet, {key, text_of(value)});
}

std::vector<uint8_t> JobStore::compareSet(const std::string& key,
                                          const std::vector<uint8_t>& expected,
                                          const std::vector<uint8_t>& desired) {
  const Message reply = ask(RequestKind::kCompareSet, {key, text_of(expected), text_of(desired)});
  return reply.fields.empty() ? std::vector<uint8_t>() : bytes_of(reply.fields[0]);
}

std::vector<uint8_t> JobStore::get(const std::string& key) {
  const Deadline end = deadline();
  auto pause = std::chrono::milliseconds(1);
  while (true) {
    const Message reply = ask(RequestKind::kGet, {key});
    if (is(reply, ReplyKind::kYes) && !reply.fields.empty()) return bytes_of(reply.fields[0]);
    TORCH_CHECK_WITH(DistStoreError, Clock::now() < end, "[rendezvous] waited ",
                     getTimeout().count(), " ms for '", key, "', which no rank has set");
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kMaxStorePause);
  }
}

int64_t JobStore::add(const std::string& key, int64_t value) {
  const Message reply = ask(RequestKind::kAdd, {key, absl::StrCat(value)});
  int64_t sum = 0;
  if (reply.fields.empty() || !absl::SimpleAtoi(reply.fields[0], &sum)) {
    fail(absl::InternalError("answered no number"));
  }
  return sum;
}

bool JobStore::deleteKey(const std::string& key) {
  return is(ask(RequestKind::kDelete, {key}), ReplyKind::kYes);
}

bool JobStore::check(const std::vector<std::string>& keys) {
  return is(ask(RequestKind::kCheck, keys), ReplyKind::kYes);
}

int64_t JobStore::getNumKeys() {
  const Message reply = ask(RequestKind::kCount, {});
  int64_t count = 0;
  if (!reply.fields.empty()) static_cast<void>(absl::SimpleAtoi(reply.fields[0], &count));
  return count;
}

void JobStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void JobStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  const Deadline end = Clock::now() + bounded(timeout);
  auto pause = std::chrono::milliseconds(1);
  while (!check(keys)) {
    TORCH_CHECK_WITH(DistStoreError, Clock::now() < end, "[rendezvous] waited ", timeout.count(),
                     " ms for '", absl::StrJoin(keys, "', '"), "', which no rank has set");
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kMaxStorePause);
  }
}

}  // namespace tessera::internal
