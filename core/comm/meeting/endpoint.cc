#include "tessera/core/comm/meeting/endpoint.h"

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/job_path.h"
#include "tessera/core/comm/meeting/search.h"
#include "tessera/core/comm/meeting/socket_path.h"
#include "tessera/core/comm/meeting/time_limited_store.h"

namespace tessera::internal {
namespace {

Endpoint find_at_url(EndpointOptions options) {
  if (is_tcp_url(options.store_url)) {
    const auto address = parse_tcp_url(options.store_url);
    TORCH_CHECK(address.ok(), "[rendezvous] ", options.url_source, ": ",
                std::string(address.status().message()));
    options.environment.master_addr = address->host;
    options.environment.master_port = address->port;
    return find_at_address(options);
  }
  const auto path = parse_store_url(options.store_url);
  TORCH_CHECK(path.ok(), "[rendezvous] ", options.url_source, ": ",
              std::string(path.status().message()));
  return find_at_path(options, *path);
}

Endpoint find(EndpointOptions options) {
  const Environment& environment = options.environment;
  if (options.store != nullptr) {
    return {.store = c10::make_intrusive<TimeLimitedStore>(options.store),
            .own = nullptr,
            .is_host = environment.rank == 0};
  }
  if (options.store_url.empty()) {
    options.store_url = environment.store_url;
    options.url_source = "TESSERA_STORE";
  }
  if (!options.store_url.empty()) return find_at_url(std::move(options));
  if (environment.agent_store) return find_at_agent(options);
  if (!environment.master_addr.empty()) return find_at_address(options);
  TORCH_CHECK(environment.is_of_scheduler(),
              "[rendezvous] options: got rank and world_size and no place where ",
              environment.world_size,
              " ranks meet; set store_url or store, or TESSERA_STORE, or MASTER_ADDR and "
              "MASTER_PORT");
  const auto path = path_of_job(environment);
  TORCH_CHECK(path.ok(), "[rendezvous] ", std::string(path.status().message()));
  if (environment.local_rank == 0) remove_dead_sockets(path->substr(0, path->rfind('/')));
  options.url_source = "the job's socket, for TESSERA_STORE is not set";
  return find_at_path(options, *path);
}

}  // namespace

std::string describe_place(const EndpointOptions& options) {
  const Environment& environment = options.environment;
  if (options.store != nullptr) return "the store that the program gives";
  if (!options.store_url.empty()) return options.store_url;
  if (!environment.store_url.empty()) return environment.store_url;
  std::string address = absl::StrCat("MASTER_ADDR ", environment.master_addr, ", MASTER_PORT ",
                                     environment.master_port);
  if (environment.agent_store) return absl::StrCat("torchrun's store, ", address);
  if (!environment.master_addr.empty()) return address;
  const auto path = path_of_job(environment);
  return path.ok() ? *path : std::string(path.status().message());
}

Endpoint find_endpoint(EndpointOptions options) {
  const std::string place = describe_place(options);
  Endpoint endpoint = find(std::move(options));
  endpoint.place = place;
  return endpoint;
}

}  // namespace tessera::internal
