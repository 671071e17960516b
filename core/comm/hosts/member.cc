#include "tessera/core/comm/hosts/member.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/departure.h"
#include "tessera/core/comm/hosts/world.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {

Member::Member(World& world, Levels levels)
    : world_(world),
      levels_(std::move(levels)),
      leaves_(leave_groups_of_host({levels_.inside.get(), levels_.inside_last.get()})) {}

Member::~Member() {
  if (first_ == nullptr) return;
  ends_calls_.reset();
  // In this order, and both before the groups go that they use.
  for (Lane* const lane : {first_.get(), last_.get()}) lane->drain();
  first_.reset();
  last_.reset();
}

std::shared_ptr<Work> Member::start(const Collective& call, First first, int64_t numel) {
  const int64_t sequence = ++sequence_;
  const Origin& origin = world_.origin();
  const std::string cause =
      origin.is_here() ? world_.failure() : origin.fork_error(absl::StrCat("rank ", world_.rank()));
  if (!cause.empty()) {
    throw CommError({to_string(call.op), name(), sequence, levels_.rank, std::string(call.tag)},
                    cause);
  }
  if (first_ == nullptr) {
    const auto interrupt = [this] {
      if (!is_idle()) world_.fail_by_leaving();
    };
    last_ = std::make_unique<Lane>(Lane::Mode::kThread, interrupt);
    first_ = std::make_unique<Lane>(Lane::Mode::kThread, interrupt);
    ends_calls_.emplace([first = first_.get(), last = last_.get()] {
      for (Lane* const lane : {first, last}) lane->drain();
    });
  }
  Collective own = call;
  std::shared_ptr<Work> after = std::exchange(own.after, nullptr);  // not of what it is made of
  const auto operation =
      std::make_shared<Operation>(std::move(own), name(), sequence, levels_.rank, world_.flights());
  open_.fetch_add(1, std::memory_order_relaxed);
  CallSignature signature = call.signature();
  if (numel >= 0) signature.numel = numel;
  first_->post([this, operation, after = std::move(after), first = std::move(first),
                record = CallRecord(signature, call.slice, call.tag)]() mutable {
    run_first(operation, std::exchange(after, nullptr), first, record);
  });
  return operation;
}

void Member::run_first(const std::shared_ptr<Operation>& operation,
                       const std::shared_ptr<Work>& after, const First& first,
                       const CallRecord& record) {
  guard(*operation, [&] {
    if (after != nullptr) after->wait();
    wait_for_memory_of(operation->collective());
    Last last = first(operation->collective(), compare_calls(levels_, record));
    if (last == nullptr) return end(*operation);
    between_hosts_.push_back(operation);
    last_->post([this, operation, last = std::move(last)]() mutable {
      guard(*operation, [&] {
        last();
        last = nullptr;  // gives its memory back before anyone sees that it is over
        end(*operation);
      });
    });
  });
}

/// Calls of a group have the effect of one after the other.
void Member::wait_for_memory_of(const Collective& call) {
  while (!between_hosts_.empty() && between_hosts_.front()->is_completed()) {
    between_hosts_.pop_front();
  }
  for (const auto& earlier : between_hosts_) {
    if (earlier->is_open_on(call)) earlier->wait();
  }
}

/// Other ranks wait for this one, so whatever goes wrong is everyone's.
template <typename Body>
void Member::guard(Operation& operation, Body&& body) {
  std::string cause;
  try {
    cause = world_.failure();
    if (cause.empty()) return body();
  } catch (const CommError& error) {
    cause = as_all_say(error.cause(), operation.sequence());
  } catch (const std::exception& error) {
    const std::string& host = levels_.layout.host_name(levels_.host());
    cause = absl::StrCat("rank ", world_.rank(), host.empty() ? "" : " on ", host,
                         " failed: ", error_text(error));
  }
  const std::string first = world_.fail(cause);
  open_.fetch_sub(1, std::memory_order_release);
  operation.fail(first);
}

/// Each level tells by its own count when a rank has left: one that has not started collective
/// `sequence`, and has started all before it.
std::string Member::as_all_say(const std::string& cause, int64_t sequence) const {
  const std::optional<int> rank = departed_rank(cause);
  if (!rank.has_value()) return cause;
  const bool is_of_all = levels_.flat->size() == world_.size();
  return absl::StrCat("rank ", *rank, is_of_all ? "" : " of the world", " left group '", name(),
                      "' after ", sequence, " collectives");
}

/// It counts as over before anyone sees that it is, who may destroy the group then.
void Member::end(Operation& operation) {
  open_.fetch_sub(1, std::memory_order_release);
  operation.finish();
}

}  // namespace tessera::internal::hosts
