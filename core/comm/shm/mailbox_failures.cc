#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/shm/mailbox.h"
#include "tessera/core/comm/shm/message_work.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {

void Mailbox::fail_as_left(const MessageWork& work) {
  const int peer = work.call().peer;
  throw_if_failed(work.call(), work.tag());  // it poisons before it leaves, and that is the cause
  const std::string who = peer >= 0 ? channel_.name_of(peer) : "every other rank";
  fail(work.call(), work.tag(),
       work.call().op == Op::kRecv
           ? absl::StrCat(who, " left the group without sending '", work.tag(),
                          "', or before it was received, and it is lost")
           : absl::StrCat(who, " left the group without receiving '", work.tag(), "'"),
       peer >= 0 ? channel_.slot(peer).world_rank : -1);
}

void Mailbox::fail_as_lost(int sender, const CallSignature& call, const std::string& tag) {
  fail(call, tag,
       absl::StrCat(channel_.name_of(sender), " left the group before its message '", tag,
                    "' was received"),
       channel_.slot(sender).world_rank);
}

void Mailbox::check_peers() {
  world_->check_peers([](const std::string& cause) { return cause; });
}

void Mailbox::report_wait(const MessageWork& work) {
  const int peer = work.call().peer;
  std::string awaited;
  for (int rank = 0; rank < channel_.size; ++rank) {
    if (peer >= 0 ? rank != peer : rank == rank_) continue;
    absl::StrAppend(&awaited, awaited.empty() ? "" : " or for ",
                    last_seen(world_->flight_of(channel_.slot(rank).world_rank), flight_time_ns()));
  }
  TORCH_WARN("[comm] ", describe(work.call(), work.tag()), " on group '", group_,
             "': ", channel_.name_of(rank_), " has waited ", report_after_.count(), " ms for ",
             awaited, ". It goes on waiting until the time-out of ", time_out_.count(), " ms");
}

/// Of kAnySource: whether all others are. Note [Absent ranks].
bool Mailbox::is_excused(int peer) const {
  for (int rank = 0; rank < channel_.size; ++rank) {
    if (peer >= 0 ? rank != peer : rank == rank_) continue;
    if (!world_->is_excused(channel_.slot(rank).world_rank, time_out_)) return false;
  }
  return peer >= 0 || channel_.size > 1;
}

void Mailbox::time_out(const MessageWork& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const CallSignature& call = work.call();
  const bool receives = call.op == Op::kRecv;
  const int culprit = call.peer < 0 ? -1 : channel_.slot(call.peer).world_rank;
  std::string cause =
      absl::StrCat("timed out: waited ", time_out_.count(), " ms for ",
                   culprit < 0 ? std::string("any rank")
                               : channel_.name_of(call.peer) + world_->place_of(culprit),
                   " to ", receives ? "send" : "receive", " '", work.tag(), "', in ",
                   describe(call, work.tag()), " of ", channel_.name_of(rank_));
  if (culprit >= 0) {
    const std::string activity = world_->activity_of(culprit);
    if (!activity.empty()) absl::StrAppend(&cause, "; it ", activity);
  }
  constexpr int kShown = 4;
  int shown = 0;
  for (const Arrived& arrived : arrived_) {
    if (!receives || shown == kShown) break;
    absl::StrAppend(&cause, shown++ == 0 ? "; what has come: " : ", ",
                    describe(arrived.record->call), " of ", channel_.name_of(arrived.sender));
  }
  fail(call, work.tag(), cause, culprit);
}

std::string Mailbox::failure() {
  if (channel_.poison.is_set()) return channel_.poison.cause();
  return world_->poison().cause();
}

void Mailbox::throw_if_failed(const CallSignature& call, const std::string& tag) {
  const std::string cause = failure();
  if (!cause.empty()) throw_error(call, tag, cause);
}

void Mailbox::fail(const CallSignature& call, const std::string& tag, const std::string& cause,
                   int culprit) {
  const bool is_first = !channel_.poison.is_set();
  if (is_first) {
    const CommError error({to_string(call.op), group_, -1, rank_, tag}, cause);
    const bool is_other = culprit >= 0 && culprit != world_->rank();
    if (is_other) report_failure(world_->number_of(culprit), error.what(), world_->pid_of(culprit));
    if (!is_other) report_failure(-1, cause);
  }
  channel_.poison.set(cause);
  world_->ring_bells(channel_);
  for (int rank = 0; rank < channel_.size; ++rank) ring(channel_.slot(rank));
  if (is_first) world_->dump_flights(cause);
  throw_error(call, tag, channel_.poison.cause());
}

void Mailbox::throw_error(const CallSignature& call, const std::string& tag,
                          const std::string& cause) const {
  throw CommError({to_string(call.op), group_, -1, rank_, tag}, cause);
}

}  // namespace tessera::internal::shm
