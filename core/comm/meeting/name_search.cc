#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/search.h"
#include "tessera/core/comm/meeting/socket_path.h"

namespace tessera::internal {
namespace {

class NameSearch final : public Search {
 public:
  using Search::Search;

  Endpoint find(const std::string& name, std::unique_ptr<Listener> listener) {
    if (listener != nullptr) return host(std::move(listener), {});
    while (true) {
      auto socket = connect_to_name(name);
      if (socket.ok()) {
        const int pid = peer_pid(socket->get());
        suspect(pid);
        const std::string who = absl::StrCat("pid ", pid, ", which listens for its host's ranks,");
        if (auto entered = enter(*std::move(socket), {}, end(), who)) return *std::move(entered);
      } else if (absl::IsNotFound(socket.status())) {  // it listened before it told the name
        fail(
            absl::StrCat("the rank of this host that listens for the others is not to be reached (",
                         std::string(socket.status().message()), ")"));
      } else {
        note(socket.status());
      }
      pause_or_give_up();
    }
  }
};

}  // namespace

Endpoint find_at_name(const EndpointOptions& options, const std::string& name,
                      std::unique_ptr<Listener> listener) {
  return NameSearch(options).find(name, std::move(listener));
}

}  // namespace tessera::internal
