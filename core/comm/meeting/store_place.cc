#include "tessera/core/comm/meeting/store_place.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/address_place.h"
#include "tessera/core/comm/meeting/mac_key.h"

namespace tessera::internal {
namespace {

// For a note that an earlier meeting has left: its address may swallow what is sent there.
constexpr auto kTimeForOldNote = std::chrono::seconds(2);

}  // namespace

StorePlace::StorePlace(std::unique_ptr<Board> board, Options options)
    : board_(std::move(board)), options_(std::move(options)) {}

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
  return options_.is_public ? check_token(address, options_.credentials.token) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listener>> StorePlace::open_listener() {
  said_ = {.secret = MacKey::new_nonce(), .name = {}, .hosts = {}, .port = 0};
  if (options_.is_one_host) {
    said_.name = absl::StrCat("tessera/", MacKey::new_nonce());
    return listen_at_name(said_.name);
  }
  const bool is_anywhere = options_.store_host.empty();
  absl::StatusOr<TcpAddress> own = TcpAddress::any();
  if (!is_anywhere) {
    own = TcpAddress::resolve({options_.store_host}, options_.store_port);
    if (own.ok()) own = TcpAddress::own_towards(*own);
  }
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
  const absl::Status put = board_->put(with_mac(said_.to_text()), deadline);
  if (!put.ok()) return put;
  return listener;
}

absl::StatusOr<FileDescriptor> StorePlace::connect(Deadline deadline) {
  const auto text = board_->look(deadline);
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
  if (!said_.name.empty()) {
    auto socket = connect_to_name(said_.name);
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
