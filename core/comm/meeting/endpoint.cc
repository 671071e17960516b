#include "tessera/core/comm/meeting/endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/core/comm/meeting/abandoned_call.h"
#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/announcement.h"
#include "tessera/core/comm/meeting/socket_path.h"
#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/comm/meeting/time_limited_store.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/machine.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kMaxLook(20);
constexpr auto kPauseAfterRefusal = std::chrono::milliseconds(200);
// A host that is there answers in microseconds, and one that is flooded in seconds.
constexpr auto kMaxHandshake = std::chrono::seconds(10);
constexpr auto kSilence = std::chrono::seconds(5);  // before a rank says what it waits for
// An answer about a port that is taken: by a rank 0 of this job or by another program?
constexpr auto kTimeToTell = std::chrono::seconds(2);

/// One rank's search for its place.
class Search {
 public:
  explicit Search(const EndpointOptions& options)
      : options_(options), start_(Clock::now()), end_(start_ + bounded(options.timeout)) {}

  Endpoint at_path(const std::string& path) {
    const auto endpoint = SocketPath::open(path);
    check(endpoint.status(), "store_url");
    while (true) {
      auto socket = endpoint->connect();
      if (socket.ok()) {
        suspect(peer_pid(socket->get()));
        const std::string who = host_ ? absl::StrCat("rank ", *host_, " (pid ", host_pid_, ")")
                                      : absl::StrCat("pid ", host_pid_);
        if (auto entered = enter(*std::move(socket), {}, end_,
                                 absl::StrCat(who, ", which listens at ", path, ","))) {
          return *std::move(entered);
        }
        const HostProcess process{.rank = 0, .pid = host_pid_, .machine = machine_id(), .host = {}};
        const std::string activity = process.activity();
        if (!activity.empty()) absl::StrAppend(&problem_, " ", activity);
      } else if (absl::IsNotFound(socket.status())) {
        auto listener = endpoint->listen();
        if (listener.ok() && *listener != nullptr) return host(*std::move(listener), {});
        if (absl::IsUnavailable(listener.status())) suspect(endpoint->lock_holder());
        note(listener.status());
      } else {
        note(socket.status());
      }
      pause_or_give_up();
    }
  }

  Endpoint at_address() {
    const Environment& environment = options_.environment;
    host_ = 0;
    variables_ = absl::StrCat("MASTER_ADDR ", environment.master_addr, ", MASTER_PORT ",
                              environment.master_port, ": ");
    const TcpAddress address = resolve(environment.rank == 0);
    check_token(address);
    if (environment.rank == 0) {
      if (address.is_loopback() && environment.job_token.empty()) warn_of_no_token();
      auto listener = address.listen();
      if (listener.ok()) return host(*std::move(listener), credentials());
      if (!absl::IsAlreadyExists(listener.status())) refuse_address(listener.status());
      return join_another_rank_0(address);
    }
    while (true) {
      auto socket = address.connect(soon());
      if (socket.ok()) {
        if (auto entered = enter(*std::move(socket), credentials(), soon(),
                                 absl::StrCat("what listens at ", address.text()))) {
          return *std::move(entered);
        }
      } else {
        note(socket.status());
      }
      pause_or_give_up();
    }
  }

  Endpoint at_agent() {
    const Environment& environment = options_.environment;
    host_ = 0;
    variables_ = absl::StrCat("torchrun's store at MASTER_ADDR ", environment.master_addr,
                              ", MASTER_PORT ", environment.master_port, ": ");
    const TcpAddress agent = resolve(false);
    for (auto socket = agent.connect(soon()); !socket.ok(); socket = agent.connect(soon())) {
      note(socket.status());
      pause_or_give_up();
    }
    TimeLimitedStore store(agents_store());
    store.setTimeout(bounded(options_.timeout));
    if (environment.rank == 0) return host_for_agent(store, agent);
    while (true) {
      if (auto entered = follow(read_address(store))) return *std::move(entered);
      pause_or_give_up();
    }
  }

 private:
  const Environment& environment() const { return options_.environment; }

  Credentials credentials() const {
    return {.token = environment().job_token,
            .run_id = environment().run_id,
            .attempt = environment().attempt};
  }

  bool is_one_host() const { return environment().local_world_size == environment().world_size; }

  Deadline soon() const { return std::min(end_, Clock::now() + kMaxHandshake); }

  static void check(const absl::Status& status, const char* what) {
    TORCH_CHECK(status.ok(), "[rendezvous] ", what, ": ", std::string(status.message()));
  }

  /// Remembers the process of this host to name if the search fails.
  void suspect(int pid) {
    host_pid_ = pid;
    host_ = rank_of_process(pid);
  }

  /// Remembers why not yet; throws what no waiting mends.
  void note(const absl::Status& status) {
    if (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) {
      check(status, "store_url");
    }
    if (status.ok()) return;
    problem_ = std::string(status.message());
    // A refusal explains more than the absence of the process, which may have ended since.
    if (!refusal_.empty()) problem_ = absl::StrCat(refusal_, "; by now ", problem_);
  }

  /// Waits a little; at the time-out throws an error that says what was found.
  void pause_or_give_up() {
    const auto now = Clock::now();
    if (now >= end_) {
      const std::string cause =
          absl::StrCat("timed out after ", options_.timeout.count(), " ms: ", variables_, problem_,
                       variables_.empty() ? "" : "; is rank 0 there?");
      report_failure(host_ && *host_ != environment().rank ? *host_ : -1, cause, host_pid_);
      throw CommError({"init_process_group", "world", -1, environment().rank, ""}, cause);
    }
    if (!has_warned_ && now - start_ > kSilence) {
      has_warned_ = true;
      TORCH_WARN("[rendezvous] rank ", environment().rank, " waits: ", variables_, problem_);
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::max(pause_, kMaxLook));
  }

  std::optional<Endpoint> enter(FileDescriptor socket, const Credentials& credentials,
                                Deadline deadline, const std::string& who = "rank 0") {
    auto connection = Connection::enter(std::move(socket), credentials, deadline);
    if (!connection.ok()) {
      // What is cut short by the time-out says less than what came before it.
      const bool is_cut = absl::IsDeadlineExceeded(connection.status()) && !refusal_.empty();
      if (!is_cut) problem_ = absl::StrCat(who, " ", std::string(connection.status().message()));
      if (absl::IsDataLoss(connection.status())) refusal_ = problem_;
      if (!refusal_.empty()) pause_ = kPauseAfterRefusal;
      return std::nullopt;
    }
    return at_store(c10::make_intrusive<JobStore>(*std::move(connection)));
  }

  Endpoint host(std::unique_ptr<Listener> listener, const Credentials& credentials) const {
    return at_store(c10::make_intrusive<JobStore>(
        std::move(listener), credentials, HostProcess::of_this_process(environment().rank)));
  }

  Endpoint at_store(c10::intrusive_ptr<JobStore> store) const {
    JobStore* const own = store.get();
    return {.store = std::move(store), .own = own, .is_host = own->is_host(), .since = start_};
  }

  /// Rank 0 must have an address; the others may come before the network knows the name.
  TcpAddress resolve(bool must_be) {
    while (true) {
      auto address =
          TcpAddress::resolve(environment().master_addr, environment().master_port, end_);
      if (address.ok()) return *std::move(address);
      problem_ =
          absl::StrCat("the host is unknown (", std::string(address.status().message()), ")");
      TORCH_CHECK(!must_be || !absl::IsNotFound(address.status()),
                  "[rendezvous] MASTER_ADDR: got '", environment().master_addr,
                  "', which is unknown (", std::string(address.status().message()),
                  "), expected a name or address of this host; correct it");
      pause_or_give_up();
    }
  }

  void check_token(const TcpAddress& address) const {
    TORCH_CHECK(address.is_loopback() || !environment().job_token.empty(),
                "[rendezvous] TESSERA_JOB_TOKEN: not set, although the ranks meet at ",
                address.text(),
                ", which other machines reach; expected a secret that all ranks of "
                "the job share: without it, anybody could take part. Set it, for instance to what "
                "`openssl rand -hex 32` prints");
  }

  static void warn_of_no_token() {
    TORCH_WARN(
        "[rendezvous] MASTER_ADDR without TESSERA_JOB_TOKEN: every user of this host may "
        "take part in the job; set one, or start the job with tessera-run");
  }

  [[noreturn]] void refuse_address(const absl::Status& status) const {
    TORCH_CHECK(false, "[rendezvous] MASTER_ADDR, MASTER_PORT: got ", environment().master_addr,
                ":", environment().master_port, ", which rank 0 cannot listen at (",
                std::string(status.message()), "), expected an address of its own; correct them");
  }

  /// Somebody listens already: another process that was made rank 0, who has to hear of it, or a
  /// program that has nothing to do with this job.
  Endpoint join_another_rank_0(const TcpAddress& address) {
    const Deadline end = std::min(end_, Clock::now() + kTimeToTell);
    auto socket = address.connect(end);
    if (socket.ok()) {
      if (auto entered = enter(*std::move(socket), credentials(), end)) return *std::move(entered);
    }
    TORCH_CHECK(false, "[rendezvous] MASTER_PORT: got ", environment().master_port, " at ",
                environment().master_addr,
                ", which another program uses, expected a free port; choose another one");
  }

  /// c10d's constructor blocks for as long as it likes.
  c10::intrusive_ptr<c10d::Store> agents_store() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(environment().master_port);
    options.waitWorkers = false;
    options.timeout = bounded(options_.timeout);
    std::string reason = "something accepts connections there, but is no store";
    try {
      auto store = call_until(end_, [host = environment().master_addr, options] {
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
    throw CommError({"init_process_group", "world", -1, environment().rank, ""}, cause);
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
      throw CommError({"init_process_group", "world", -1, environment().rank, ""},
                      absl::StrCat(variables_, "the store failed: ", error_text(error)));
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
      throw CommError({"init_process_group", "world", -1, environment().rank, ""},
                      absl::StrCat(variables_, "the store failed: ", error_text(error)));
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
    const auto address = TcpAddress::resolve(where->host, where->port, end_);
    if (!address.ok()) return std::nullopt;
    check_token(*address);
    auto socket = address->connect(soon());
    if (socket.ok()) return enter(*std::move(socket), credentials(), soon());
    problem_ = std::string(socket.status().message());
    return std::nullopt;
  }

  const EndpointOptions& options_;
  const Clock::time_point start_;
  const Deadline end_;
  std::string variables_;    // that lead to rank 0; "" at a path, where any rank hosts
  std::optional<int> host_;  // the rank that hosts, as far as it is known
  int host_pid_ = 0;         // its process, if it is one of this host
  std::string problem_ = "nobody came";
  bool has_warned_ = false;
  std::string refusal_;  // of who turned this rank away
  std::chrono::milliseconds pause_{1};
};

}  // namespace

Endpoint find_endpoint(const EndpointOptions& options) {
  if (options.store != nullptr) {
    return {.store = c10::make_intrusive<TimeLimitedStore>(options.store),
            .own = nullptr,
            .is_host = options.environment.rank == 0};
  }
  Search search(options);
  const std::string& url =
      options.store_url.empty() ? options.environment.store_url : options.store_url;
  if (url.empty()) {
    return options.environment.agent_store ? search.at_agent() : search.at_address();
  }
  const auto path = parse_store_url(url);
  TORCH_CHECK(path.ok(), "[rendezvous] store_url: ", std::string(path.status().message()));
  return search.at_path(*path);
}

}  // namespace tessera::internal
