#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/search.h"

namespace tessera::internal {
namespace {

// An answer about a port that is taken: by a rank 0 of this job or by another program?
constexpr auto kTimeToTell = std::chrono::seconds(2);

class AddressSearch final : public Search {
 public:
  using Search::Search;

  Endpoint find() {
    host_ = 0;
    variables_ = is_url() ? absl::StrCat(options_.url_source, " ", options_.store_url, ": ")
                          : absl::StrCat("MASTER_ADDR ", environment().master_addr,
                                         ", MASTER_PORT ", environment().master_port, ": ");
    const TcpAddress address = resolve(environment().rank == 0);
    check_token(address);
    if (environment().rank == 0) return listen(address);
    const Credentials job = credentials();
    while (true) {
      auto socket = address.connect(soon());
      if (socket.ok()) {
        if (auto entered = enter(*std::move(socket), job, soon(),
                                 absl::StrCat("what listens at ", address.text()))) {
          return *std::move(entered);
        }
      } else {
        note(socket.status());
      }
      pause_or_give_up();
    }
  }

 private:
  bool is_url() const { return !options_.store_url.empty(); }

  Endpoint listen(const TcpAddress& address) {
    if (address.is_loopback() && environment().job_token.empty()) warn_of_no_token();
    auto listener = address.listen();
    if (listener.ok()) return host(*std::move(listener), credentials());
    if (!absl::IsAlreadyExists(listener.status())) refuse_address(listener.status());
    return join_another_rank_0(address);
  }

  void warn_of_no_token() const {
    TORCH_WARN("[rendezvous] ", is_url() ? options_.url_source : "MASTER_ADDR",
               " without TESSERA_JOB_TOKEN: every user of this host may "
               "take part in the job; set one, or start the job with tessera-run");
  }

  [[noreturn]] void refuse_address(const absl::Status& status) const {
    TORCH_CHECK(false, "[rendezvous] ", is_url() ? options_.url_source : "MASTER_ADDR, MASTER_PORT",
                ": got ", environment().master_addr, ":", environment().master_port,
                ", which rank 0 cannot listen at (", std::string(status.message()),
                "), expected an address of its own; correct them");
  }

  /// Somebody listens already: another process that was made rank 0, who has to hear of it, or a
  /// program that has nothing to do with this job.
  Endpoint join_another_rank_0(const TcpAddress& address) {
    const Deadline until = std::min(end(), Clock::now() + kTimeToTell);
    auto socket = address.connect(until);
    if (socket.ok()) {
      if (auto entered = enter(*std::move(socket), credentials(), until)) {
        return *std::move(entered);
      }
    }
    TORCH_CHECK(false, "[rendezvous] ", is_url() ? options_.url_source : "MASTER_PORT", ": got ",
                environment().master_port, " at ", environment().master_addr,
                ", which another program uses, expected a free port; choose another one");
  }
};

}  // namespace

Endpoint find_at_address(const EndpointOptions& options) { return AddressSearch(options).find(); }

}  // namespace tessera::internal
