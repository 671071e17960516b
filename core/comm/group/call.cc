#include "tessera/core/comm/group/call.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/group/member.h"

namespace tessera::internal {

Call::Call(std::shared_ptr<const Caller> caller, Form form, std::shared_ptr<FlightRing> flights)
    : caller_(std::move(caller)),
      form_(std::move(form)),
      tag_(form_.collective.tag),
      record_(form_.collective, form_.sequence),
      flight_(std::move(flights), record_.signature, form_.sequence, tag_, caller_->group) {
  form_.collective.tag = tag_;  // the caller may destroy its text before this call is over
}

Call::~Call() = default;

const char* Call::name() const {
  return form_.name != nullptr ? form_.name : to_string(record_.signature.op);
}

std::string Call::text() const {
  return absl::StrCat(form_.name != nullptr ? absl::StrCat(form_.name, " of '", tag_, "'")
                                            : describe(record_.signature, tag_),
                      is_message() ? "" : absl::StrCat(" #", form_.sequence), " on group '",
                      caller_->group, "'");
}

CommError Call::error(const std::string& cause) const {
  return {{name(), caller_->group, form_.sequence, caller_->rank, tag_}, cause};
}

bool Call::is_completed() {
  // In a child of fork() the call counts as completed, because wait() does not block there: it
  // throws at once.
  if (is_over() || !caller_->origin.is_here()) return true;
  if (const auto member = caller_->member.lock()) member->look(*this);
  return is_over();
}

void Call::wait() {
  if (!caller_->origin.is_here())
    throw error(caller_->origin.fork_error(absl::StrCat("rank ", caller_->number)));
  if (!is_over()) {
    const auto member = caller_->member.lock();
    if (member == nullptr) throw error("the group was destroyed");
    member->await(*this);
  }
  if (cause_.has_value()) throw error(*cause_);
}

bool Call::wait_for(std::chrono::milliseconds longest) {
  if (is_over() || !caller_->origin.is_here()) return true;
  const auto member = caller_->member.lock();
  return member == nullptr || member->await(*this, longest);
}

bool Call::may_begin() {
  if (form_.collective.after == nullptr) return true;
  if (!form_.collective.after->is_completed()) return false;
  std::exchange(form_.collective.after, nullptr)->wait();
  return true;
}

void Call::record(const std::shared_ptr<FlightRing>& flights) {
  if (flight_.is_recorded()) return;
  flight_ = Flight(flights, record_.signature, form_.sequence, tag_, caller_->group);
}

bool Call::await_end(std::chrono::milliseconds longest) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_for(lock, bounded(longest), [this] { return is_over(); });
}

void Call::end(std::optional<std::string> cause) {
  if (is_over()) return;
  flight_.end();
  // The tensors are dropped before another thread can see that the call is over.
  form_.collective.output = at::Tensor();
  form_.collective.input = at::Tensor();
  form_.collective.after = nullptr;
  cause_ = std::move(cause);
  if (!form_.has_thread) return is_over_.store(true, std::memory_order_release);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_.store(true, std::memory_order_release);
  }
  ended_.notify_all();
}

}  // namespace tessera::internal
