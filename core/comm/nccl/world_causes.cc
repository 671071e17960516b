#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/nccl/world.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/core/DeviceGuard.h>

#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world_cause.h"
#include "tessera/core/process/error_text.h"

// How the watching thread finds out why a world fails.
namespace tessera::internal::nccl {
namespace {

// Ranks answer within one look at the table, if they can.
constexpr int kLooksForAnswers = 4;
constexpr auto kAnswerGrace = std::chrono::milliseconds(100);

/// The rank of the world that has not come to collective `sequence`, the first of several; -1 if
/// all have.
int find_missing(const Progress& progress, int64_t sequence, const std::vector<Report>& reports) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const bool is_there = sequence < 0 ? reports[rank].state != Report::State::kSilent
                                       : reports[rank].begun > sequence;
    if (!is_there) return progress.world_ranks()[rank];
  }
  return -1;
}

}  // namespace

std::shared_ptr<Communicator> World::find_failed(Result& state) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicators = communicators_;
  }
  for (const auto& communicator : communicators) {
    state = communicator->try_poll().value_or(Result::kSuccess);
    if (state != Result::kSuccess && state != Result::kInProgress) return communicator;
  }
  return nullptr;
}

World::Cause World::look_at_communicators() {
  Result state = Result::kSuccess;
  const auto failed = find_failed(state);
  if (failed == nullptr) return {};
  Cause cause{absl::StrCat("rank ", options_.rank, " failed: NCCL reports ",
                           failed->error_text(state), " on communicator '", failed->name(), "'")};
  return state == Result::kRemoteError ? name_lost(std::move(cause)) : cause;
}

World::Cause World::look_at_pending() {
  std::list<std::shared_ptr<Pending>> over;  // their tensors are freed outside the lock
  std::shared_ptr<Pending> late;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto now = Clock::now();
    for (auto next = pending_.begin(); next != pending_.end();) {
      const auto current = next++;
      if ((*current)->look()) {
        over.splice(over.end(), pending_, current);
      } else if (late == nullptr && (*current)->is_late(now)) {
        late = *current;
      }
    }
  }
  return late == nullptr ? Cause() : explain(*late);
}

World::Cause World::look_at_table() {
  if (table_lost_) return {};
  try {
    if (const auto failure = agreement_.failure()) return {*failure, -1, /*is_published=*/true};
    const auto inquiry = agreement_.inquiry();
    if (inquiry && !answered_) answer(*inquiry);
  } catch (const std::exception&) {
    // Who hosts the table may leave first. What hangs because of it runs into its time-out.
    table_lost_ = true;
  }
  return {};
}

void World::answer(const Agreement::Inquiry& inquiry) {
  std::shared_ptr<Progress> progress;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = progress_.find(inquiry.group);
    if (found != progress_.end()) progress = found->second;
  }
  agreement_.answer(progress == nullptr ? "none" : progress->report(inquiry.sequence));
  answered_ = true;
}

/// Asks all ranks of a group about collective `sequence`, or waits for what the rank that asked
/// first finds out. Throws what the table throws.
World::Answers World::ask(const Progress& progress, int64_t sequence) {
  Answers answers;
  std::vector<Report>& reports = answers.reports;
  reports.resize(progress.world_ranks().size());
  const Agreement::Inquiry inquiry = agreement_.ask(progress.group(), sequence);
  answers.asker = inquiry.asker;
  const bool is_own = inquiry.asker == options_.rank;
  if (!answered_) answer(inquiry);
  const auto patience = options_.table_poll * kLooksForAnswers + kAnswerGrace;
  const auto deadline = Clock::now() + (is_own ? patience : 2 * patience);
  const auto has_all = [&] {
    bool all = true;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (reports[rank].state != Report::State::kSilent) continue;
      const auto text = agreement_.answer_of(progress.world_ranks()[rank], progress.group());
      if (text) reports[rank] = Report::parse(*text);
      all = all && text.has_value();
    }
    return all;
  };
  while (Clock::now() < deadline) {
    answers.failure = agreement_.failure();
    if (answers.failure || (is_own && has_all())) break;
    std::this_thread::sleep_for(options_.local_poll);
  }
  return answers;
}

/// Why a collective is late.
World::Cause World::explain(const Pending& pending) {
  const Progress& progress = pending.progress();
  const int64_t sequence = pending.call().sequence;
  const int64_t waited_ms = options_.timeout.count();
  try {
    const Answers answers = ask(progress, sequence);
    if (answers.failure) return {*answers.failure, -1, /*is_published=*/true};
    const bool is_own = answers.asker == options_.rank;
    if (traits_of(pending.call().signature.op).tensors == OpTraits::Tensors::kMessage) {
      const int peer = progress.world_ranks()[pending.call().signature.peer];
      return {explain_late_message(progress, pending.call(), waited_ms, answers.reports), peer};
    }
    return {explain_time_out(progress, sequence, waited_ms, answers.reports),
            is_own ? find_missing(progress, sequence, answers.reports) : answers.asker};
  } catch (const std::exception& error) {
    return {absl::StrCat("timed out: waited ", waited_ms, " ms; the table is gone (",
                         error_text(error), ")")};
  }
}

/// `cause`, where NCCL has lost a rank and does not say which: who has left, or does not answer,
/// began it.
World::Cause World::name_lost(Cause cause) {
  std::shared_ptr<Progress> world;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [group, progress] : progress_) {
      if (static_cast<int>(progress->world_ranks().size()) == options_.size) world = progress;
    }
  }
  if (world == nullptr) return cause;
  try {
    const Answers answers = ask(*world, -1);
    if (answers.failure) return {*answers.failure, -1, /*is_published=*/true};
    if (answers.asker != options_.rank) return cause;
    for (size_t rank = 0; rank < answers.reports.size(); ++rank) {
      const bool has_left = answers.reports[rank].state == Report::State::kLeft;
      if (!has_left && answers.reports[rank].state != Report::State::kSilent) continue;
      cause.culprit = world->world_ranks()[rank];
      absl::StrAppend(&cause.text, "; rank ", cause.culprit,
                      has_left ? " has left" : " does not answer");
      break;
    }
  } catch (const std::exception&) {  // the table is gone, so no rank can be named
  }
  return cause;
}

}  // namespace tessera::internal::nccl
