#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/job_path.h"
#include "tessera/core/comm/meeting/search.h"
#include "tessera/core/comm/meeting/socket_path.h"
#include "tessera/core/process/machine.h"

namespace tessera::internal {
namespace {

class PathSearch final : public Search {
 public:
  using Search::Search;

  Endpoint find(const std::string& path) {
    // A launcher's two jobs may have been given one path. Of others' the path is the name.
    Credentials job;
    if (environment().is_of_scheduler()) job.run_id = job_name(environment()).value_or("");
    const auto endpoint = SocketPath::open(path);
    check(endpoint.status(), options_.url_source);
    while (true) {
      auto socket = endpoint->connect();
      if (socket.ok()) {
        suspect(peer_pid(socket->get()));
        const std::string who = host_ ? absl::StrCat("rank ", *host_, " (pid ", host_pid_, ")")
                                      : absl::StrCat("pid ", host_pid_);
        if (auto entered = enter(*std::move(socket), job, end(),
                                 absl::StrCat(who, ", which listens at ", path, ","))) {
          return *std::move(entered);
        }
        const HostProcess process{.rank = 0, .pid = host_pid_, .machine = machine_id(), .host = {}};
        const std::string activity = process.activity();
        if (!activity.empty()) absl::StrAppend(&problem_, " ", activity);
      } else if (absl::IsNotFound(socket.status())) {
        auto listener = endpoint->listen();
        if (listener.ok() && *listener != nullptr) return host(*std::move(listener), job);
        if (absl::IsUnavailable(listener.status())) suspect(endpoint->lock_holder());
        note(listener.status());
      } else {
        note(socket.status());
      }
      pause_or_give_up();
    }
  }
};

}  // namespace

Endpoint find_at_path(const EndpointOptions& options, const std::string& path) {
  return PathSearch(options).find(path);
}

}  // namespace tessera::internal
