#include "tessera/core/comm/rendezvous/meet.h"

#include <unistd.h>

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/address_place.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/core/comm/rendezvous/store_place.h"
#include "tessera/core/comm/shm/world.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/launcher_process.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

void warn(const std::string& text) { TORCH_WARN(text); }

template <typename T>
T checked(absl::StatusOr<T> result, const std::string& source = "") {
  TORCH_CHECK(result.ok(), "[rendezvous] ", source, source.empty() ? "" : ": ",
              std::string(result.status().message()));
  return *std::move(result);
}

/// Returns the credentials of this job and attempt; ranks with other credentials are not admitted.
Credentials credentials_of(const Environment& environment) {
  std::string job = environment.job_id;
  if (job.empty() && environment.is_of_scheduler() && environment.is_one_host()) {
    job = job_name(environment).value_or("");
  }
  return {.token = environment.job_token,
          .run_id = absl::StrCat(environment.run_id, job),
          .attempt = environment.attempt};
}

std::unique_ptr<Place> place_at_url(const std::string& url, const std::string& source,
                                    const Environment& environment) {
  if (!is_tcp_url(url)) {
    return std::make_unique<UnixPlace>(checked(parse_store_url(url), source), source,
                                       credentials_of(environment));
  }
  const StoreAddress address = checked(parse_tcp_url(url), source);
  return std::make_unique<AddressPlace>(address.host, address.port, source,
                                        credentials_of(environment), warn);
}

std::unique_ptr<Place> place_at_master(const Environment& environment) {
  const std::string& host = environment.master_addr;
  const int port = environment.master_port;
  if (!environment.agent_store) {
    return std::make_unique<AddressPlace>(host, port, "MASTER_ADDR and MASTER_PORT",
                                          credentials_of(environment), warn);
  }
  const std::string key =
      absl::StrCat("tessera/address/", environment.run_id, "/", environment.attempt);
  return std::make_unique<StorePlace>(
      nullptr, StorePlace::Options{.text = absl::StrCat("torchrun's store at MASTER_ADDR ", host,
                                                        ", MASTER_PORT ", port),
                                   .credentials = credentials_of(environment),
                                   .is_one_host = environment.is_one_host(),
                                   .key = key,
                                   .agent_host = host,
                                   .agent_port = port});
}

}  // namespace

std::unique_ptr<Place> find_place(const ProcessGroupOptions& options,
                                  const Environment& environment) {
  if (options.store != nullptr) {
    return std::make_unique<StorePlace>(
        options.store,
        StorePlace::Options{.text = "the store that the program gives",
                            .credentials = credentials_of(environment),
                            .is_one_host = options.device.is_cpu() || environment.is_one_host(),
                            .key = "tessera/meeting"});
  }
  if (!options.store_url.empty()) return place_at_url(options.store_url, "store_url", environment);
  if (!environment.store_url.empty()) {
    return place_at_url(environment.store_url, "TESSERA_STORE", environment);
  }
  if (!environment.master_addr.empty()) return place_at_master(environment);
  TORCH_CHECK(environment.is_of_scheduler(),
              "[rendezvous] options: got rank and world_size and no place where ",
              environment.world_size,
              " ranks meet; set store_url or store, or TESSERA_STORE, or MASTER_ADDR and "
              "MASTER_PORT");
  return std::make_unique<UnixPlace>(
      absl::StrCat("tessera-", ::geteuid(), "/", checked(job_name(environment))),
      "the job's socket, for TESSERA_STORE is not set", credentials_of(environment));
}

Meeting meet(Place& place, Transport& transport, const Environment& environment,
             std::chrono::milliseconds timeout, at::Device device) {
  const std::string build = absl::StrCat("page of ", shm::ControlPage::bytes(1));
  const MeetingOptions options{
      .own = Hello::of_this_process(environment.rank, environment.world_size,
                                    device.is_cuda() ? "cuda" : "cpu", build),
      .timeout = timeout,
      .warn = warn,
      .report = [](int culprit, const std::string& cause) { report_failure(culprit, cause); }};
  MeetingFailure failure;
  try {
    return Meeting(place, transport, options);
  } catch (const MeetingFailure& thrown) {
    failure = thrown;
  }
  TORCH_CHECK(!failure.is_place_wrong, failure.cause);
  throw CommError({"init_process_group", "world", -1, environment.rank, ""}, failure.cause);
}

}  // namespace tessera::internal
