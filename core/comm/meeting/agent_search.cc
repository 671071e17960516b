#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/abandoned_call.h"
#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/announcement.h"
#include "tessera/core/comm/meeting/search.h"
#include "tessera/core/comm/meeting/time_limited_store.h"
#include "tessera/core/process/error_text.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

class AgentSearch final : public Search {
 public:
  using Search::Search;

  Endpoint find() {
    host_ = 0;
    variables_ = absl::StrCat("torchrun's store at MASTER_ADDR ", environment().master_addr,
                              ", MASTER_PORT ", environment().master_port, ": ");
    const TcpAddress agent = resolve(false);
    for (auto socket = agent.connect(soon()); !socket.ok(); socket = agent.connect(soon())) {
      note(socket.status());
      pause_or_give_up();
    }
    TimeLimitedStore store(agents_store());
    store.setTimeout(bounded(options_.timeout));
    if (environment().rank == 0) return host_for_agent(store, agent);
    while (true) {
      if (auto entered = follow(read_address(store))) return *std::move(entered);
      pause_or_give_up();
    }
  }

 private:
  bool is_one_host() const { return environment().local_world_size == environment().world_size; }

  /// c10d's constructor blocks for as long as it likes.
  c10::intrusive_ptr<c10d::Store> agents_store() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(environment().master_port);
    options.waitWorkers = false;
    options.timeout = bounded(options_.timeout);
    std::string reason = "something accepts connections there, but is no store";
    try {
      auto store = call_until(end(), [host = environment().master_addr, options] {
        return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::TCPStore>(host, options));
      });
      if (store) return *std::move(store);
    } catch (const std::exception& error) {
      reason = error_text(error);
      reason = reason.substr(0, reason.find('\n'));
    }
    const std::string cause =
        absl::StrCat("timed out after ", options_.timeout.count(), " ms: ", variables_,
                     "no store answered (", reason, "); is torchrun there?");
    fail(cause);
  }

  std::string address_key() const {
    return absl::StrCat("tessera/address/", environment().run_id, "/", environment().attempt);
  }

  /// "<MAC> <kind> <where>".
  std::string with_mac(const std::string& text) const {
    const auto mac = MacKey::of_token(environment().job_token).compute({address_key(), text});
    return absl::StrCat(absl::BytesToHexString(absl::string_view(
                            reinterpret_cast<const char*>(mac.data()), mac.size())),
                        " ", text);
  }

  /// What rank 0 said last, if it was rank 0.
  std::optional<std::string> read_address(TimeLimitedStore& store) {
    const auto text = look(store);
    if (!text) {
      problem_ = "rank 0 has not said where it listens";
      return std::nullopt;
    }
    const size_t space = text->find(' ');
    const std::string said = space == std::string::npos ? "" : text->substr(space + 1);
    if (with_mac(said) == *text) return said;
    problem_ =
        "rank 0's address in the store does not verify: somebody else wrote it, or rank 0 has "
        "another TESSERA_JOB_TOKEN";
    return std::nullopt;
  }

  std::optional<std::string> look(TimeLimitedStore& store) {
    try {
      if (!store.check({address_key()})) return std::nullopt;
      return store.get_to_str(address_key());
    } catch (const std::exception& error) {
      fail(absl::StrCat(variables_, "the store failed: ", error_text(error)));
    }
  }

  Endpoint host_for_agent(TimeLimitedStore& store, const TcpAddress& agent) {
    Announcement where;
    std::unique_ptr<Listener> listener;
    if (is_one_host()) {
      where.name = absl::StrCat("tessera/", MacKey::new_nonce());
      auto made = listen_at_name(where.name);
      check(made.status(), "a socket for the ranks of this host");
      listener = *std::move(made);
    } else {
      const auto own = TcpAddress::own_towards(agent);
      check(own.status(), "MASTER_ADDR");
      check_token(*own);
      auto made = own->listen();
      check(made.status(), own->text().c_str());
      listener = *std::move(made);
      const TcpEndpoint endpoint = endpoint_of(*listener);
      where.host = endpoint.host;
      where.port = endpoint.port;
    }
    Endpoint endpoint = host(std::move(listener), is_one_host() ? Credentials() : credentials());
    try {
      static_cast<c10d::Store&>(store).set(address_key(), with_mac(where.to_text()));
    } catch (const std::exception& error) {
      fail(absl::StrCat(variables_, "the store failed: ", error_text(error)));
    }
    return endpoint;
  }

  /// Goes where rank 0 said that it is.
  std::optional<Endpoint> follow(const std::optional<std::string>& said) {
    if (!said) return std::nullopt;
    const auto where = Announcement::from_text(*said);
    if (!where) {
      problem_ =
          "rank 0's text in the store is not an address; run one build of Tessera on all ranks";
      return std::nullopt;
    }
    if (!where->name.empty()) {
      auto socket = connect_to_name(where->name);
      if (socket.ok()) return enter(*std::move(socket), {}, soon());
      problem_ =
          absl::StrCat("rank 0 is not where it said: ", std::string(socket.status().message()));
      return std::nullopt;
    }
    if (is_one_host()) {  // rank 0 publishes no port then; following one could lead to another user
      problem_ =
          "rank 0's address in the store is not a socket of this host: somebody else wrote it, "
          "or rank 0 has another LOCAL_WORLD_SIZE";
      return std::nullopt;
    }
    const auto address = TcpAddress::resolve(where->host, where->port, end());
    if (!address.ok()) return std::nullopt;
    check_token(*address);
    auto socket = address->connect(soon());
    if (socket.ok()) return enter(*std::move(socket), credentials(), soon());
    problem_ = std::string(socket.status().message());
    return std::nullopt;
  }
};

}  // namespace

Endpoint find_at_agent(const EndpointOptions& options) { return AgentSearch(options).find(); }

}  // namespace tessera::internal
