#include "tessera/core/comm/mpi/call.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal::mpi {
namespace {

// Beyond the time-out, for the progress thread to notice it; if it does not, it hangs inside MPI.
constexpr auto kGrace = std::chrono::seconds(5);

}  // namespace

Call::Call(Collective collective, std::string group, int rank, int64_t sequence, Patience patience,
           std::shared_ptr<FlightRing> flights, const char* name)
    : collective_(std::move(collective)),
      signature_(collective_.signature()),
      tag_(collective_.tag),
      name_(name != nullptr ? name : to_string(signature_.op)),
      group_(std::move(group)),
      rank_(rank),
      sequence_(sequence),
      patience_(patience),
      begin_(sequence < 0 ? Clock::time_point::max() : Clock::now()),
      flight_(std::move(flights), signature_, sequence, tag_, group_) {
  collective_.tag = tag_;
}

bool Call::is_completed() {
  if (!origin_.is_here()) return true;  // for wait() throws
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_over_;
}

void Call::wait() {
  const CommErrorContext context{name_, group_, sequence_, rank_, tag_};
  if (!origin_.is_here()) {
    throw CommError(context, origin_.fork_error(absl::StrCat("rank ", rank_)));
  }
  if (begin_.load() == Clock::time_point::max()) restart_clock();
  std::unique_lock<std::mutex> lock(mutex_);
  // Again and again, for the clock of a collective starts anew when those before it are over.
  while (!ended_.wait_for(lock, timeout() + kGrace, [this] { return is_over_; })) {
    if (!is_late(Clock::now() - kGrace)) continue;
    throw CommError(context, absl::StrCat("timed out: waited ", timeout().count(),
                                          " ms, and MPI has not returned from a call that does"
                                          " not block; end this process"));
  }
  if (is_failed_) throw CommError(context, cause_);
}

bool Call::wait_for(std::chrono::milliseconds longest) {
  if (!origin_.is_here()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_for(lock, bounded(longest), [this] { return is_over_; });
}

bool Call::may_begin() {
  if (collective_.after == nullptr) return true;
  restart_clock();
  if (!collective_.after->is_completed()) return false;
  std::exchange(collective_.after, nullptr)->wait();
  return true;
}

void Call::end(int source, const std::string* cause) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
    source_ = source;
    is_failed_ = cause != nullptr;
    if (cause != nullptr) cause_ = *cause;
    collective_.output = at::Tensor();
    collective_.input = at::Tensor();
    collective_.after = nullptr;
  }
  ended_.notify_all();
}

std::string Call::text() const {
  const std::string call = name_ == to_string(signature_.op)
                               ? describe(signature_, tag_)
                               : absl::StrCat(name_, " of '", tag_, "'");
  return absl::StrCat(call, sequence_ < 0 ? "" : absl::StrCat(" #", sequence_), " on group '",
                      group_, "'");
}

void Call::finish(int source) {
  flight_.end();
  end(source, nullptr);
}

void Call::fail(const std::string& cause) { end(-1, &cause); }

}  // namespace tessera::internal::mpi
