#include "tessera/core/comm/nccl/world.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/core/DeviceGuard.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/process/ending_thread.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/failure_report.h"

namespace tessera::internal::nccl {
namespace {

// How long failure() waits, the first time, until the cause of the failure is published and the
// communicators are aborted. The wait has a limit, because an abort that hangs must not hang the
// caller.
constexpr auto kTimeToSettle = std::chrono::seconds(5);

}  // namespace

/// A group that has been destroyed, and those of its communicators that still exist.
struct World::Leaving {
  std::string group;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<std::shared_ptr<Stream>> streams;
  Clock::time_point deadline;
  std::string report;  // text still to be written into the table; "" once it is there
};

std::shared_ptr<World> World::start(WorldOptions options, std::shared_ptr<Progress> all) {
  const std::shared_ptr<World> world(new World(std::move(options), std::move(all)));
  world->enter(world->all_);
  EndingThread(
      "the progress of NCCL", [world] { world->run(); }, [world] { world->end(); })
      .detach();
  return world;
}

World::World(WorldOptions options, std::shared_ptr<Progress> all)
    : options_(std::move(options)), all_(std::move(all)), next_look_(Clock::now()) {}

World::~World() = default;

void World::propose(std::string_view cause) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (proposal_.empty()) proposal_ = cause.empty() ? "aborted" : std::string(cause);
    changed_.notify_all();
  } catch (...) {  // no memory for the text: the others see a time-out
  }
}

std::optional<std::string> World::failure() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (proposal_.empty() && !failed_) return std::nullopt;
  // Wait for is_down_: before that, work on the device may still touch memory that the caller frees
  // when it unwinds.
  if (!gave_up_) gave_up_ = !settled_.wait_for(lock, kTimeToSettle, [this] { return is_down_; });
  return failed_ ? cause_ : proposal_;
}

void World::watch(std::shared_ptr<Pending> pending) {
  const NumberedCall& call = pending->call();
  pending->record({flights_, call.signature, call.sequence, call.tag, pending->group()});
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_.empty()) changed_.notify_all();
  pending_.push_back(std::move(pending));
}

void World::enter(std::shared_ptr<Progress> progress) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++groups_;
  progress_[progress->group()] = std::move(progress);
}

void World::adopt(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

void World::leave(const std::shared_ptr<Progress>& progress,
                  std::vector<std::shared_ptr<Communicator>> communicators,
                  std::vector<std::shared_ptr<Stream>> streams) noexcept {
  try {
    progress->leave();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& gone : communicators) std::erase(communicators_, gone);
    leaving_.push_back({.group = progress->group(),
                        .communicators = std::move(communicators),
                        .streams = std::move(streams),
                        .deadline = Clock::now() + options_.timeout,
                        .report = progress->report()});
    --groups_;
    changed_.notify_all();
  } catch (...) {  // no memory: the communicators stay until the process ends
  }
}

void World::run() {
  // Inside a call, NCCL makes the communicator's device current, and afterwards restores the device
  // that was current before. In a new thread that device is GPU 0, and making it current would
  // create a context on it. So make this rank's device current first.
  c10::OptionalDeviceGuard here;
  if (options_.device != nullptr) here.reset_device(options_.device->torch_device());
  while (sleep()) {
    if (!is_failed()) {
      const Cause cause = look();
      if (!cause.text.empty()) settle(cause);
    }
    if (is_failed()) drop();
    take_down();
  }
  // The process ends, or no group and no call is left. What remains to be done is to publish a
  // cause that was proposed, and to tell the table which groups this rank has left.
  if (const std::string cause = proposal(); !cause.empty() && !is_failed()) publish({cause});
  take_down();
}

/// Called when the process ends.
void World::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
}

/// Waits until there may be something to do. Returns false if the thread is to end.
bool World::sleep() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_ending_) return false;
  const bool is_busy = !pending_.empty() || !leaving_.empty();
  if (groups_ == 0 && !is_busy) return false;
  if (!proposal_.empty() && !failed_) return true;
  changed_.wait_for(lock, is_busy ? options_.local_poll : options_.table_poll);
  return true;
}

std::string World::proposal() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return proposal_;
}

/// Publishes `cause`, adopts whichever cause was published first as this rank's cause, then aborts
/// the world's communicators.
void World::settle(const Cause& cause) {
  std::string first = publish(cause);
  // Writes only this rank's last calls, because the other ranks write their own.
  const RankFlight own{.rank = options_.rank,
                       .pid = static_cast<int>(::getpid()),
                       .state = "failed",
                       .begun = flights_->begun(),
                       .records = flights_->last()};
  write_flight_dump(flight_dump_directory(), options_.rank, {own}, first);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cause_ = std::move(first);
    failed_.store(true, std::memory_order_release);
  }
  drop();
  const std::lock_guard<std::mutex> lock(mutex_);
  is_down_ = true;
  settled_.notify_all();
}

/// Aborts the communicators of a failed world, those of destroyed groups included, and drops its
/// pending calls, including those that began while the world failed.
void World::drop() {
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::list<std::shared_ptr<Pending>> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // First those of destroyed groups: one of them may be the parent of a split under way.
    for (Leaving& gone : leaving_) {
      communicators.insert(communicators.end(), gone.communicators.begin(),
                           gone.communicators.end());
      gone.communicators.clear();
    }
    communicators.insert(communicators.end(), communicators_.begin(), communicators_.end());
    communicators_.clear();
    pending.swap(pending_);
  }
  Communicator::abort_together(communicators);
}

/// Returns true if a call of `group`, or of any group if `group` is empty, is in flight on the
/// device.
bool World::has_pending(std::string_view group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& pending) {
    return pending->is_on_device() && (group.empty() || pending->group() == group);
  });
}

/// Tells the table that groups of this rank are gone. Finishes their communicators as far as
/// possible now; at the time-out, or after an error, aborts them once no call of the world is in
/// flight. In a failed world drop() does.
void World::take_down() {
  std::list<Leaving> leaving;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving.swap(leaving_);
  }
  for (auto next = leaving.begin(); next != leaving.end();) {
    const auto gone = next++;
    if (!gone->report.empty()) say_left(gone->group, std::exchange(gone->report, ""));
    const bool is_late = Clock::now() >= gone->deadline;
    if (!is_failed() && (is_late || !has_pending(gone->group))) {
      std::erase_if(gone->communicators, [&](const std::shared_ptr<Communicator>& communicator) {
        const Communicator::End end = communicator->finish();
        if (end == Communicator::End::kDestroyed) return true;
        if ((end == Communicator::End::kNotYet && !is_late) || has_pending()) return false;
        Communicator::abort_together({communicator});
        return true;
      });
    }
    if (gone->communicators.empty()) leaving.erase(gone);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving_.splice(leaving_.begin(), leaving);
}

// --- Causes ---
// How the watch thread finds out why a world fails, and tells the other ranks through the table.

/// One rank's report, parsed from its text in the table.
struct Report {
  int64_t begun = -1;  // number of collectives that the rank has begun; -1 if it does not answer
  bool has_left = false;
  std::string text;  // the rank's call with the number that was asked for; "" if it is not known

  static Report parse(const std::string& text) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
    Report report;
    if (parts.size() < 2 || !absl::SimpleAtoi(parts[1], &report.begun)) return {};
    report.has_left = parts[0] == "left";
    if (parts.size() == 3) report.text = parts[2];
    return report;
  }
};

namespace {

// How long a rank that asks waits for the answers: kLooksForAnswers times WorldOptions::table_poll,
// plus kAnswerGrace. A rank that can answer does so when it next looks at the table.
constexpr int kLooksForAnswers = 4;
constexpr auto kAnswerGrace = std::chrono::milliseconds(100);

// Keys of the table. Only the first failure and the first inquiry count.
constexpr const char* kFailure = "nccl/failure";
constexpr const char* kInquiry = "nccl/inquiry";

std::string answer_key(int rank) { return absl::StrCat("nccl/answer/", rank); }

std::string left_key(int rank, const std::string& group) {
  return absl::StrCat("nccl/left/", group, "/", rank);
}

std::string absence(const Report& report) {
  if (report.begun < 0) return ", which does not answer";
  return absl::StrCat(report.has_left ? ", which left the group after " : ", which has begun ",
                      report.begun, " collectives");
}

/// Returns a text that says how the call of some rank differs from rank 0's; "" if none is known to
/// differ.
std::string difference(const Progress& progress, const std::vector<Report>& reports) {
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const bool is_known = !reports[rank].text.empty() && !reports[0].text.empty();
    if (!is_known || reports[rank].text == reports[0].text) continue;
    return absl::StrCat("calls that differ: ", progress.name_of(static_cast<int>(rank)), " called ",
                        reports[rank].text, " where ", progress.name_of(0), " called ",
                        reports[0].text);
  }
  return "";
}

/// Returns why the call `pending` has not finished after `waited_ms`, according to the ranks'
/// reports. Names the ranks that have not begun the call; if all have, two calls that differ; if
/// none differ, a device or a network that hangs. A message has no number, so for a message the
/// peer is named.
Cause explain_time_out(const Pending& pending, int64_t waited_ms,
                       const std::vector<Report>& reports) {
  const Progress& progress = pending.progress();
  const NumberedCall& call = pending.call();
  const bool is_message = traits_of(call.signature.op).tensors == OpTraits::Tensors::kMessage;
  Cause cause{absl::StrCat("timed out: waited ", waited_ms, " ms for ")};
  std::string missing;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank) {
    const bool is_missing =
        is_message ? rank == call.signature.peer : reports[rank].begun <= call.sequence;
    if (!is_missing) continue;
    if (missing.empty()) cause.culprit = progress.world_ranks()[rank];
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", progress.name_of(rank),
                    absence(reports[rank]));
  }
  if (is_message) absl::StrAppend(&missing, ", in ", call.text());
  if (missing.empty()) missing = difference(progress, reports);
  if (missing.empty()) {
    missing = "all ranks to finish what all have begun; look for a device or a network that hangs";
  }
  cause.text += missing;
  return cause;
}

}  // namespace

/// The answers of a group's ranks to an inquiry about one collective. `reports` has them by rank.
/// `asker` is the rank that has asked first.
struct World::Answers {
  std::vector<Report> reports;
  int asker = -1;
  std::optional<std::string> failure;  // set if a failure was published meanwhile
};

Cause World::look() {
  Cause cause{proposal()};
  Result state = Result::kSuccess;
  const auto failed = find_failed(state);
  if (cause.text.empty()) cause = look_at_pending();
  if (cause.text.empty() && failed != nullptr) {
    cause.text = absl::StrCat("rank ", options_.rank, " failed: NCCL reports ",
                              failed->error_text(state), " on communicator '", failed->name(), "'");
  }
  if (cause.text.empty()) return look_at_table();
  const bool has_lost = state == Result::kRemoteError && !cause.is_published;
  return has_lost ? name_lost(std::move(cause)) : cause;
}

/// If a communicator reports an error, returns it and sets `state` to the error. Returns null if
/// none does.
std::shared_ptr<Communicator> World::find_failed(Result& state) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicators = communicators_;
  }
  for (const auto& communicator : communicators) {
    state = communicator->poll().value_or(Result::kSuccess);
    if (state != Result::kSuccess && state != Result::kInProgress) return communicator;
  }
  return nullptr;
}

Cause World::look_at_pending() {
  // Finished calls; their tensors are freed after the lock is released.
  std::list<std::shared_ptr<Pending>> over;
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

Cause World::look_at_table() {
  if (table_lost_ || Clock::now() < next_look_) return {};
  next_look_ = Clock::now() + options_.table_poll;
  try {
    if (const auto failure = options_.table->get(kFailure)) {
      return {*failure, -1, /*is_published=*/true};
    }
    if (answered_) return {};
    if (const auto inquiry = options_.table->get(kInquiry)) answer(*inquiry);
  } catch (const std::exception&) {
    // The rank that serves the table may leave first. A call that hangs because of that times out.
    table_lost_ = true;
  }
  return {};
}

/// Answers the first inquiry in the table. `inquiry` holds the rank that asks, the number of a
/// collective, and its group. The answer says whether this rank has left the group, how many
/// collectives it has begun there, and which collective of this rank has that number, if it is
/// still recorded.
void World::answer(const std::string& inquiry) {
  if (std::exchange(answered_, true)) return;
  const std::vector<std::string> parts = absl::StrSplit(inquiry, absl::MaxSplits(' ', 2));
  int64_t sequence = -1;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &sequence)) return;
  const std::string& group = parts[2];
  std::string report = "in 0";  // if this rank has not made the group
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = progress_.find(group);
    if (found != progress_.end()) report = found->second->report();
  }
  for (const FlightRecord& record : flights_->last()) {
    if (record.sequence < 0 || record.sequence != sequence || !record.is_of(group)) continue;
    absl::StrAppend(&report, " ", describe(record.signature, record.tag.beginning()));
    break;
  }
  options_.table->set(answer_key(options_.rank), report);
}

/// Writes `report` about the destroyed group `group` into the table now, because this thread may
/// have ended when another rank asks.
void World::say_left(const std::string& group, const std::string& report) noexcept {
  try {
    options_.table->set(left_key(options_.rank, group), report);
  } catch (const std::exception&) {  // then this rank counts as one that does not answer
  }
}

/// Asks all ranks of a group about collective `sequence`, or, if another rank has asked first,
/// waits for the failure that the other rank publishes. Throws what the table throws.
World::Answers World::ask(const Progress& progress, int64_t sequence) {
  SharedTable& table = *options_.table;
  const std::string own = absl::StrCat(options_.rank, " ", sequence, " ", progress.group());
  const std::string first = table.set_first(kInquiry, own);
  answer(first);
  Answers answers;
  answers.asker = std::stoi(first);
  const bool is_own = answers.asker == options_.rank;
  std::vector<Report>& reports = answers.reports;
  reports.resize(progress.world_ranks().size());
  const auto patience = options_.table_poll * kLooksForAnswers + kAnswerGrace;
  const auto deadline = Clock::now() + (is_own ? patience : 2 * patience);
  const auto has_all = [&] {
    bool all = true;
    for (size_t i = 0; i < reports.size(); ++i) {
      if (reports[i].begun >= 0) continue;
      const int rank = progress.world_ranks()[i];
      auto text = table.get(left_key(rank, progress.group()));
      if (!text) text = table.get(answer_key(rank));
      if (text) reports[i] = Report::parse(*text);
      all = all && text.has_value();
    }
    return all;
  };
  while (Clock::now() < deadline) {
    answers.failure = table.get(kFailure);
    if (answers.failure || (is_own && has_all())) break;
    std::this_thread::sleep_for(options_.local_poll);
  }
  return answers;
}

/// Returns why a collective or a message is late.
Cause World::explain(const Pending& pending) {
  const int64_t waited_ms = options_.timeout.count();
  try {
    const Answers answers = ask(pending.progress(), pending.call().sequence);
    if (answers.failure) return {*answers.failure, -1, /*is_published=*/true};
    Cause cause = explain_time_out(pending, waited_ms, answers.reports);
    if (answers.asker != options_.rank) cause.culprit = answers.asker;
    return cause;
  } catch (const std::exception& error) {
    return {absl::StrCat("timed out: waited ", waited_ms, " ms; the table is gone (",
                         error_text(error), ")")};
  }
}

/// Called when NCCL has lost a rank, which it does not name. Adds to `cause` the rank that has left
/// or does not answer.
Cause World::name_lost(Cause cause) {
  try {
    const Answers answers = ask(*all_, -1);
    if (answers.failure) return {*answers.failure, -1, /*is_published=*/true};
    if (answers.asker != options_.rank) return cause;
    for (int rank = 0; rank < options_.size; ++rank) {
      const Report& report = answers.reports[rank];
      if (report.begun >= 0 && !report.has_left) continue;
      cause.culprit = rank;
      absl::StrAppend(&cause.text, "; rank ", rank,
                      report.has_left ? " has left" : " does not answer");
      break;
    }
  } catch (const std::exception&) {  // the table is gone, so no rank can be named
  }
  return cause;
}

/// Publishes `cause`, unless a cause is published already. Returns the published one, which is the
/// cause on all ranks. If no cause is published yet, reports `cause` to the launcher before it
/// publishes it.
std::string World::publish(const Cause& cause) {
  bool is_first = !cause.is_published;
  try {
    is_first = is_first && !options_.table->get(kFailure);
  } catch (const std::exception&) {  // the table is gone
  }
  if (is_first) report_failure(cause.culprit, cause.text);
  try {
    return options_.table->set_first(kFailure, cause.text);
  } catch (const std::exception&) {  // then every rank has its own cause
    return cause.text;
  }
}
}  // namespace tessera::internal::nccl
