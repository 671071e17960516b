#include "tessera/core/comm/meeting/search.h"

#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/job_path.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

constexpr std::chrono::milliseconds kMaxLook(20);
constexpr auto kPauseAfterRefusal = std::chrono::milliseconds(200);
constexpr auto kSilence = std::chrono::seconds(5);  // before a rank says what it waits for

}  // namespace

Search::Search(const EndpointOptions& options)
    : options_(options), start_(Clock::now()), end_(start_ + bounded(options.timeout)) {}

Credentials Search::credentials() const {
  std::string job = environment().job_id;
  if (job.empty() && environment().is_of_scheduler() && environment().is_one_host()) {
    job = job_name(environment()).value_or("");
  }
  return {.token = environment().job_token,
          .run_id = absl::StrCat(environment().run_id, job),
          .attempt = environment().attempt};
}

void Search::check(const absl::Status& status, const std::string& what) {
  TORCH_CHECK(status.ok(), "[rendezvous] ", what, ": ", std::string(status.message()));
}

void Search::fail(const std::string& cause) const {
  throw CommError({"init_process_group", "world", -1, environment().rank, ""}, cause);
}

void Search::suspect(int pid) {
  host_pid_ = pid;
  host_ = rank_of_process(pid);
}

void Search::note(const absl::Status& status) {
  if (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) {
    check(status, options_.url_source);
  }
  if (status.ok()) return;
  problem_ = std::string(status.message());
  // A refusal explains more than the absence of the process, which may have ended since.
  if (!refusal_.empty()) problem_ = absl::StrCat(refusal_, "; by now ", problem_);
}

void Search::pause_or_give_up() {
  const auto now = Clock::now();
  if (now >= end_) {
    const std::string cause =
        absl::StrCat("timed out after ", options_.timeout.count(), " ms: ", variables_, problem_,
                     variables_.empty() ? "" : "; is rank 0 there?");
    report_failure(host_ && *host_ != environment().rank ? *host_ : -1, cause, host_pid_);
    fail(cause);
  }
  if (!has_warned_ && now - start_ > kSilence) {
    has_warned_ = true;
    TORCH_WARN("[rendezvous] rank ", environment().rank, " waits: ", variables_, problem_);
  }
  std::this_thread::sleep_for(pause_);
  pause_ = std::min(pause_ * 2, std::max(pause_, kMaxLook));
}

std::optional<Endpoint> Search::enter(FileDescriptor socket, const Credentials& credentials,
                                      Deadline deadline, const std::string& who) {
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

Endpoint Search::host(std::unique_ptr<Listener> listener, const Credentials& credentials) const {
  return at_store(c10::make_intrusive<JobStore>(std::move(listener), credentials,
                                                HostProcess::of_this_process(environment().rank)));
}

Endpoint Search::at_store(c10::intrusive_ptr<JobStore> store) const {
  JobStore* const own = store.get();
  return {.store = std::move(store), .own = own, .is_host = own->is_host(), .since = start_};
}

TcpAddress Search::resolve(bool must_be) {
  while (true) {
    auto address = TcpAddress::resolve(environment().master_addr, environment().master_port, end_);
    if (address.ok()) return *std::move(address);
    problem_ = absl::StrCat("the host is unknown (", std::string(address.status().message()), ")");
    TORCH_CHECK(!must_be || !absl::IsNotFound(address.status()), "[rendezvous] ",
                options_.store_url.empty() ? "MASTER_ADDR" : options_.url_source, ": got '",
                environment().master_addr, "', which is unknown (",
                std::string(address.status().message()),
                "), expected a name or address of this host; correct it");
    pause_or_give_up();
  }
}

void Search::check_token(const TcpAddress& address) const {
  TORCH_CHECK(address.is_loopback() || !environment().job_token.empty(),
              "[rendezvous] TESSERA_JOB_TOKEN: not set, although the ranks meet at ",
              address.text(),
              ", which other machines reach; expected a secret that all ranks of "
              "the job share: without it, anybody could take part. Set it, for instance to what "
              "`openssl rand -hex 32` prints");
}

}  // namespace tessera::internal
