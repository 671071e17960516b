#include "tessera/core/comm/meeting/address_place.h"

#include <absl/strings/str_cat.h>

namespace tessera::internal {

absl::Status check_token(const TcpAddress& address, const std::string& token) {
  if (address.is_loopback() || !token.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "TESSERA_JOB_TOKEN: not set, although the ranks meet at ", address.text(),
      ", which other machines reach; expected a secret that all ranks of the job share: without "
      "it, anybody could take part. Set it, for instance to what `openssl rand -hex 32` prints"));
}

std::string AddressPlace::text() const { return absl::StrCat(source_, " ", host_, ":", port_); }

std::string AddressPlace::problem(const std::string& text) const {
  return absl::StrCat(source_, ": got ", host_, ":", port_, ", which ", text);
}

absl::StatusOr<TcpAddress> AddressPlace::resolve() {
  if (!address_) {
    const auto found = TcpAddress::resolve({host_}, port_);
    if (!found.ok()) return found.status();
    address_ = *found;
  }
  const absl::Status status = check_token(*address_, credentials_.token);
  if (!status.ok()) return status;
  return *address_;
}

absl::StatusOr<std::unique_ptr<Listener>> AddressPlace::listen(Deadline /*deadline*/) {
  const auto address = resolve();
  if (absl::IsNotFound(address.status())) {
    return absl::FailedPreconditionError(
        problem("is unknown, expected a name or address of this host; correct it"));
  }
  if (!address.ok()) return address.status();
  if (credentials_.token.empty()) {
    warn_(absl::StrCat("[rendezvous] ", source_,
                       " without TESSERA_JOB_TOKEN: every user of this host may take part in the "
                       "job; set one, or start the job with tessera-run"));
  }
  auto listener = address->listen();
  if (listener.ok()) return listener;
  if (absl::IsAlreadyExists(listener.status())) {
    return absl::AlreadyExistsError(
        problem("another program uses, expected a free port; choose another one"));
  }
  return absl::FailedPreconditionError(
      problem(absl::StrCat("rank 0 cannot listen at (", std::string(listener.status().message()),
                           "), expected an address of its own; correct it")));
}

absl::StatusOr<FileDescriptor> AddressPlace::connect(Deadline deadline) {
  const auto address = resolve();
  if (!address.ok()) return address.status();
  auto socket = address->connect(deadline);
  if (!absl::IsNotFound(socket.status())) return socket;
  return absl::NotFoundError(
      absl::StrCat(std::string(socket.status().message()), "; is rank 0 there?"));
}

}  // namespace tessera::internal
