#include "tessera/core/comm/meeting/store_place.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <typeinfo>
#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Type.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/address_place.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

// For a note that an earlier meeting has left: its address may swallow what is sent there.
constexpr auto kTimeForOldNote = std::chrono::seconds(2);

/// Runs `call` in a thread and returns or throws its result, or returns nothing if it is not done
/// by `deadline`; the thread is detached then, as a store may block forever. `call` must own all
/// that it uses. Throws std::runtime_error if no thread can be started.
template <typename Call>
auto call_until(Deadline deadline, Call call) -> std::optional<decltype(call())> {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  thread_without_signals("a call that may not return", std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

UnixPlace socket_of(const Announcement& said) { return UnixPlace("tessera/" + said.hosts.front()); }

}  // namespace

StorePlace::StorePlace(Store store, Options options)
    : store_(std::move(store)), options_(std::move(options)) {}

absl::StatusOr<StorePlace::Store> StorePlace::connect_to_agent(Deadline deadline) const {
  const std::string& host = options_.agent_host;
  // c10d's constructor waits, and logs, for as long as it likes where nobody listens.
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

/// What `call` returns of the store.
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
    auto result =
        call_until(deadline, [store = store_, call = std::move(call)] { return call(*store); });
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
  credentials.token += said_.secret;
  return credentials;
}

/// "<MAC> <text>". The MAC also covers which job and attempt this is.
std::string StorePlace::with_mac(const std::string& text) const {
  const auto mac = MacKey::of_token(options_.credentials.token)
                       .compute({"announcement", options_.credentials.run_id,
                                 options_.credentials.attempt, text});
  const absl::string_view bytes(reinterpret_cast<const char*>(mac.data()), mac.size());
  return absl::StrCat(absl::BytesToHexString(bytes), " ", text);
}

absl::Status StorePlace::check_public(const TcpAddress& address) const {
  const bool is_public = !options_.agent_host.empty();
  return is_public ? check_token(address, options_.credentials.token) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listener>> StorePlace::open_listener() {
  said_ = {.secret = MacKey::new_nonce(), .port = 0, .hosts = {}};
  if (options_.is_one_host) {
    said_.hosts = {MacKey::new_nonce()};
    return socket_of(said_).listen({});
  }
  const bool is_anywhere = options_.agent_host.empty();
  // Where there is no IPv6, the second one listens.
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
  said_.port = endpoint.port;
  said_.hosts = is_anywhere ? own_hosts() : std::vector<std::string>{endpoint.host};
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
  const auto put = ask_store(
      deadline, [key = options_.key, text = with_mac(said_.to_text())](c10d::Store& store) {
        store.set(key, text);
        return true;
      });
  if (!put.ok()) return put.status();
  return listener;
}

/// Fills in what rank 0 has said.
absl::Status StorePlace::read_announcement(Deadline deadline) {
  // get() of a key that is not there would block, and others with it.
  const auto text = ask_store(deadline, [key = options_.key](c10d::Store& store) {
    return store.check({key}) ? std::optional(store.get_to_str(key)) : std::nullopt;
  });
  if (!text.ok()) return text.status();
  if (!text->has_value()) return absl::NotFoundError("rank 0 has not said where it listens");
  const size_t space = (*text)->find(' ');
  const std::string said = space == std::string::npos ? "" : (*text)->substr(space + 1);
  if (with_mac(said) != **text) {
    return absl::UnavailableError(
        "rank 0's address in the store does not verify: somebody else wrote it, or rank 0 has "
        "another TESSERA_JOB_TOKEN");
  }
  const auto where = Announcement::from_text(said);
  if (!where) {
    return absl::UnavailableError(
        "rank 0's text in the store is not an address; run one build of Tessera on all ranks");
  }
  said_ = *where;
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> StorePlace::connect(Deadline deadline) {
  const absl::Status read = read_announcement(deadline);
  if (!read.ok()) return read;
  if (said_.port == 0) {
    auto socket = socket_of(said_).connect(deadline);
    if (socket.ok()) return socket;
    return absl::NotFoundError(absl::StrCat("rank 0 is not where it said, or on another host: ",
                                            std::string(socket.status().message())));
  }
  // Rank 0 names no port then, and following one could lead to another user.
  if (options_.is_one_host) {
    return absl::UnavailableError(
        "rank 0's address in the store is not a socket of this host: somebody else wrote it, or "
        "rank 0 has another LOCAL_WORLD_SIZE");
  }
  const auto address = TcpAddress::resolve(said_.hosts, said_.port);
  if (!address.ok()) return address.status();
  const absl::Status allowed = check_public(*address);
  if (!allowed.ok()) return allowed;
  return address->connect(deadline);
}

}  // namespace tessera::internal
