#include "tessera/core/comm/rendezvous/store_place.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <typeinfo>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/address_place.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// How long rank 0 tries the address in a note of an earlier meeting. That address may never answer.
constexpr auto kTimeForOldNote = std::chrono::seconds(2);
constexpr auto kTimeToAnswer = std::chrono::milliseconds(100);

/// Runs `call` in a detached thread, because a store may block forever. Returns its result, throws
/// its exception, or returns nullopt if it has not ended by `deadline`. `call` must own all that it
/// uses. Throws std::runtime_error if no thread can be started.
template <typename Call>
auto call_until(Deadline deadline, Call call) -> std::optional<decltype(call())> {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  thread_without_signals("a call that may not return", std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

/// Returns the abstract socket of this name on this host.
UnixPlace socket_called(const std::string& name) { return UnixPlace("tessera/" + name); }

}  // namespace

StorePlace::StorePlace(Store store, Options options)
    : store_(std::move(store)), options_(std::move(options)) {}

absl::StatusOr<StorePlace::Store> StorePlace::connect_to_agent(Deadline deadline) const {
  const std::string& host = options_.agent_host;
  // Try a connection of our own first: if nothing listens, c10d's constructor waits, and logs,
  // without a limit.
  const auto address = TcpAddress::resolve({host}, options_.agent_port);
  if (!address.ok()) return address.status();
  const auto socket = address->connect(deadline);
  if (!socket.ok()) {
    return absl::Status(socket.status().code(), absl::StrCat(std::string(socket.status().message()),
                                                             "; is torchrun there?"));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(options_.agent_port);
  options.waitWorkers = false;
  options.timeout = bounded(std::chrono::milliseconds(milliseconds_until(deadline)));
  std::string reason = "something accepts connections there, but is no store";
  try {
    const auto store = call_until(deadline, [host, options] {
      return Store(c10::make_intrusive<c10d::TCPStore>(host, options));
    });
    if (store) return *store;
  } catch (const std::exception& error) {
    reason = error_text(error);
    reason = reason.substr(0, reason.find('\n'));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no store answered (", reason, "); is torchrun there?"));
}

/// Runs `call` on the store and returns its result. Every call gets at least kTimeToAnswer, even at
/// the deadline. Otherwise the last error would say that the store is slow, and not what it holds.
template <typename Call>
auto StorePlace::ask_store(Deadline deadline, Call call)
    -> absl::StatusOr<decltype(call(*Store()))> {
  if (store_ == nullptr) {
    auto agent = connect_to_agent(deadline);
    if (!agent.ok()) return agent.status();
    store_ = *std::move(agent);
  }
  const std::string what =
      options_.agent_host.empty()
          ? absl::StrCat("the ", c10::demangle(typeid(*store_).name()), " that was given")
          : "torchrun's store";
  try {
    const Deadline end = std::max(deadline, std::chrono::steady_clock::now() + kTimeToAnswer);
    auto result =
        call_until(end, [store = store_, call = std::move(call)] { return call(*store); });
    if (result) return *std::move(result);
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " failed: ", error_text(error), "; see why"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(what, " has not answered; its call is left behind"));
}

Credentials StorePlace::credentials() const {
  Credentials credentials = options_.credentials;
  credentials.token += secret_;
  return credentials;
}

/// Returns the framing that writes or reads the note. The note is a frame whose MAC also covers the
/// job and the attempt.
Framing StorePlace::framing(Framing::Side side) const {
  const Credentials& job = options_.credentials;
  Framing framing(side);
  framing.authenticate_with(MacKey::of_token(job.token).derive({"note", job.run_id, job.attempt}));
  framing.trust();
  return framing;
}

absl::Status StorePlace::check_public(const TcpAddress& address) const {
  const bool is_public = !options_.agent_host.empty();
  return is_public ? check_token(address, options_.credentials.token) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listener>> StorePlace::open_listener() {
  secret_ = MacKey::new_nonce();
  port_ = 0;
  if (options_.is_one_host) {
    hosts_ = {MacKey::new_nonce()};
    return socket_called(hosts_.front()).listen({});
  }
  const bool is_anywhere = options_.agent_host.empty();
  // With a program's store, rank 0 listens at all addresses of its host: at "::" or, if there is no
  // IPv6, at "0.0.0.0".
  absl::StatusOr<TcpAddress> own =
      is_anywhere ? TcpAddress::resolve({"::", "0.0.0.0"}, 0)
                  : TcpAddress::resolve({options_.agent_host}, options_.agent_port);
  if (!is_anywhere && own.ok()) own = TcpAddress::own_towards(*own);
  if (!own.ok()) return own.status();
  const absl::Status allowed = check_public(*own);
  if (!allowed.ok()) return allowed;
  auto listener = own->listen();
  if (!listener.ok()) return listener;
  const TcpEndpoint endpoint = endpoint_of(**listener);
  port_ = endpoint.port;
  hosts_ = is_anywhere ? own_hosts() : std::vector<std::string>{endpoint.host};
  return listener;
}

absl::StatusOr<std::unique_ptr<Listener>> StorePlace::listen(Deadline deadline) {
  if (connect(std::min(deadline, std::chrono::steady_clock::now() + kTimeForOldNote)).ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat(options_.text,
                     ": got a place where another rank 0 listens, expected one of this job's "
                     "own; give each job a store, or a prefix in it, of its own"));
  }
  auto listener = open_listener();
  if (!listener.ok()) return listener;
  Message note = Message::of(MessageKind::kNote, {secret_, absl::StrCat(port_)});
  note.fields.insert(note.fields.end(), hosts_.begin(), hosts_.end());
  const std::string text = framing(Framing::Side::kServer).wrap(note.to_bytes());
  const auto put = ask_store(deadline, [key = options_.key, text](c10d::Store& store) {
    store.set(key, text);
    return true;
  });
  if (!put.ok()) return put.status();
  return listener;
}

/// Reads the note that rank 0 has written into the store.
absl::Status StorePlace::read_note(Deadline deadline) {
  // Ask whether the key exists first, because get() of a missing key would block, and would block
  // other callers, too.
  const auto text = ask_store(deadline, [key = options_.key](c10d::Store& store) {
    return store.check({key}) ? std::optional(store.get_to_str(key)) : std::nullopt;
  });
  if (!text.ok()) return text.status();
  if (!text->has_value()) return absl::NotFoundError("rank 0 has not said where it listens");
  Framing frame = framing(Framing::Side::kMember);
  frame.add(**text);
  const auto payload = frame.take();
  if (!payload) {
    return absl::UnavailableError(
        "rank 0's address in the store does not verify: somebody else wrote it, or rank 0 has "
        "another TESSERA_JOB_TOKEN");
  }
  const auto note = Message::from_bytes(*payload);
  if (!note || note->fields.size() < 3 || !note->is(MessageKind::kNote, note->fields.size()) ||
      !absl::SimpleAtoi(note->fields[1], &port_) || port_ < 0 || port_ > 65535) {
    return absl::UnavailableError(
        "rank 0's text in the store is not an address; run one build of Tessera on all ranks");
  }
  secret_ = note->fields[0];
  hosts_.assign(note->fields.begin() + 2, note->fields.end());
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> StorePlace::connect(Deadline deadline) {
  const absl::Status read = read_note(deadline);
  if (!read.ok()) return read;
  if (port_ == 0) {
    auto socket = socket_called(hosts_.front()).connect(deadline);
    if (socket.ok()) return socket;
    return absl::NotFoundError(absl::StrCat("rank 0 is not where it said, or on another host: ",
                                            std::string(socket.status().message())));
  }
  // Refuse a note with a port: if all ranks are on one host, rank 0 writes no port into its note,
  // and another user's process could listen at the port.
  if (options_.is_one_host) {
    return absl::UnavailableError(
        "rank 0's address in the store is not a socket of this host: somebody else wrote it, or "
        "rank 0 has another LOCAL_WORLD_SIZE");
  }
  const auto address = TcpAddress::resolve(hosts_, port_);
  if (!address.ok()) return address.status();
  const absl::Status allowed = check_public(*address);
  if (!allowed.ok()) return allowed;
  return address->connect(deadline);
}

}  // namespace tessera::internal
