#include "tessera/core/comm/handshake.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "tessera/core/comm/failure_report.h"
#include "tessera/core/comm/hello.h"
#include "tessera/core/comm/meeting/heartbeat.h"
#include "tessera/core/comm/meeting/words.h"
#include "tessera/core/comm/time_out.h"
#include "tessera/core/error_text.h"
#include "tessera/core/errors.h"

namespace tessera {
namespace {

// Note [Handshake]
// ~~~~~~~~~~~~~~~~
// A store may hold keys of an earlier attempt, and two processes may believe that they are the same
// rank. So every call of init_process_group makes a nonce, and everything said later stands under
// nonces. Each rank says a Hello under its number; who finds another one there says its own again,
// so that the host sees both. The host (Note [Places]) reads them and alone decides. Hellos of
// processes that have ended, and of earlier worlds of a process that still runs, are no part of
// this attempt. Once each rank has one live Hello, the host opens the venue and tells each nonce
// where that is; they enter, and say so; when all have, the host says "go". What goes wrong before
// is the verdict on all: a conflict, for which the host waits a moment so that the others can come
// and hear it, a death, a rank that gives up, a venue that cannot be made or entered.

using Clock = std::chrono::steady_clock;

constexpr auto kLinger = std::chrono::seconds(2);
constexpr std::chrono::seconds kSilence(5);  // before the host first says whom it waits for
constexpr auto kLongestPause = std::chrono::milliseconds(20);
// At the time-out the host knows more than the others: they wait a little longer for its verdict.
constexpr auto kGrace = std::chrono::milliseconds(500);

const char* const kEntered = "entered ";  // and the host's nonce
const char* const kGone = "gone";
const char* const kFailed = "failed: ";
const char* const kEnter = "enter\n";  // and the host's nonce, and the venue's text in a line
const char* const kGo = "go";
const char* const kVerdict = "verdict\n";
const char* const kVerdictOnAll = "tessera/verdict";  // where nobody else's attempt is
const char* const kPage = "tessera/page";

std::string hello_key(int rank) { return absl::StrCat("tessera/hello/", rank); }
std::string answer_key(const std::string& nonce) { return absl::StrCat("tessera/answer/", nonce); }
std::string mark_key(const std::string& nonce) { return absl::StrCat("tessera/mark/", nonce); }

std::string range_text(const shm::SharedRange& range) {
  return absl::StrCat(range.segment.device, " ", range.segment.inode, " ", range.segment_bytes, " ",
                      range.pid, " ", range.fd);
}

std::optional<shm::SharedRange> parse_range(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  shm::SharedRange range;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &range.segment.device) ||
      !absl::SimpleAtoi(fields[1], &range.segment.inode) ||
      !absl::SimpleAtoi(fields[2], &range.segment_bytes) ||
      !absl::SimpleAtoi(fields[3], &range.pid) || !absl::SimpleAtoi(fields[4], &range.fd)) {
    return std::nullopt;
  }
  return range;
}

/// Where the ranks go on once they have met.
class Venue {
 public:
  virtual ~Venue() = default;
  /// Whether the ranks must be on one host.
  virtual bool is_local() const = 0;
  /// The host, which knows all processes: one line of text that leads the others there.
  virtual std::string open(const std::vector<int>& pids) = 0;
  /// The other ranks. Throws if the text leads nowhere.
  virtual void enter(const std::string& text) = 0;
};

/// What one rank knows of the others and how it ends; what host and members have in common.
class Meeting {
 public:
  Meeting(const Place& place, const HandshakeOptions& options, Venue& venue)
      : place_(place),
        options_(options),
        venue_(venue),
        words_(place.own == nullptr && !options.job_token.empty()
                   ? Words(*place.store, options.job_token)
                   : Words(*place.store)),
        heartbeat_(words_),
        own_(Hello::of_this_process(options.rank, options.world_size, options.job_token,
                                    options.device)),
        start_(Clock::now()) {}
  virtual ~Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  void run() {
    try {
      bound_store();
      refuse_twin_of_the_past();
      if (place_.own != nullptr) place_.own->set_when_gone(mark_key(own_.nonce), kGone);
      words_.say(hello_key(options_.rank), own_.to_text());
      take_part();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {  // the store's: its host may have ended
      const std::string cause = error_text(error);
      if (place_.own != nullptr && !place_.is_host) report_failure(place_.own->host().rank, cause);
      give_up(cause);
    } catch (...) {
      give_up(present_error_text());
    }
  }

 protected:
  virtual void take_part() = 0;

  [[noreturn]] void give_up(const std::string& cause) {
    try {
      words_.say(mark_key(own_.nonce), absl::StrCat(kFailed, cause));
    } catch (const std::exception&) {  // the store may be what failed
    }
    throw CommError({"init_process_group", "world", -1, options_.rank, ""}, cause);
  }

  /// No call of the store outlasts the time-out by much.
  void bound_store() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        start_ + bounded(options_.timeout) + kGrace - Clock::now());
    place_.store->setTimeout(std::max<std::chrono::milliseconds>(left, kGrace));
  }

  void pause() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, kLongestPause);
  }
  void pause_shortly_again() { pause_ = std::chrono::milliseconds(1); }

  bool is_time_out(Clock::duration grace = {}) const {
    return Clock::now() - start_ > bounded(options_.timeout) + grace;
  }

  /// Whether the process of a Hello still takes part; `known` if it has been seen to.
  enum class Life : uint8_t { kNone, kTakesPart, kEnded };
  Life life_of(const Hello& hello, bool known) {
    if (hello.host == own_.host && own_.start_time != 0) {  // else /proc is hidden
      if (hello.is_alive()) return Life::kTakesPart;
      return known ? Life::kEnded : Life::kNone;
    }
    if (place_.own != nullptr) return Life::kTakesPart;  // else its mark would say that it is gone
    const Heartbeat::Sign sign = heartbeat_.sign_of(hello.nonce);
    if (sign == Heartbeat::Sign::kStopped) return Life::kEnded;
    return sign == Heartbeat::Sign::kRuns ? Life::kTakesPart : Life::kNone;
  }

  void beat() {
    if (place_.own == nullptr) heartbeat_.beat(own_.nonce);
  }

  std::string name_of(const Hello& hello) const {
    return absl::StrCat("rank ", hello.rank, " (pid ", hello.pid,
                        hello.host == own_.host ? "" : absl::StrCat(" on ", hello.host_name), ")");
  }

  /// "rank 1, rank 2 did not come".
  std::string missing_text(const std::vector<int>& missing) const {
    const std::string ignored =
        words_.ignored() == 0
            ? ""
            : "; what the store holds under some keys does not verify: give all ranks the same "
              "TESSERA_JOB_TOKEN";
    return absl::StrCat("timed out after ", options_.timeout.count(), " ms: rank ",
                        absl::StrJoin(missing, ", rank "), " did not come", ignored);
  }

  /// Says on this rank what another one has told it to.
  void hear_verdict() {
    const auto answer = words_.hear(answer_key(own_.nonce));
    if (answer && absl::StartsWith(*answer, kVerdict)) {
      give_up(answer->substr(std::string_view(kVerdict).size()));
    }
  }

  static std::string twins_text(int rank, int pid, int other) {
    const auto pids = std::minmax(pid, other);
    return absl::StrCat("RANK ", rank, " was given twice, to pid ", pids.first, " and to pid ",
                        pids.second, "; give each process its own RANK");
  }

  const Place& place_;
  const HandshakeOptions& options_;
  Venue& venue_;
  Words words_;
  Heartbeat heartbeat_;
  const Hello own_;
  const Clock::time_point start_;

 private:
  /// In a store that others may have met in: another process that has this number in a world that
  /// exists.
  void refuse_twin_of_the_past() {
    if (place_.own != nullptr) return;
    const auto text = words_.hear(hello_key(options_.rank));
    const auto hello = text ? Hello::from_text(*text) : std::nullopt;
    if (!hello || hello->host != own_.host || hello->pid == own_.pid || !hello->is_alive()) return;
    const auto mark = words_.hear(mark_key(hello->nonce));
    if (!mark || !absl::StartsWith(*mark, kEntered)) return;
    const std::string cause = twins_text(options_.rank, hello->pid, own_.pid);
    report_failure(-1, cause);
    give_up(cause);
  }

  std::chrono::milliseconds pause_{1};
};

/// The rank that answers the others.
class Host final : public Meeting {
 public:
  using Meeting::Meeting;

 private:
  void take_part() override {
    try {
      gather();
      open_venue();
      await_all();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      condemn(absl::StrCat("rank ", options_.rank, " failed: ", error_text(error)));
    }
    if (place_.own != nullptr) place_.own->close_door();
    for (const auto& [rank, hello] : guests_) words_.say(answer_key(hello.nonce), kGo);
  }

  /// Until every rank is there.
  void gather() {
    std::optional<Clock::time_point> conflict_seen;
    guests_.emplace(own_.rank, own_);
    while (true) {
      bound_store();
      beat();
      hear_verdict();
      for (int rank = 0; rank < most_ranks(); ++rank) look_at(rank);
      const std::string conflict = find_conflict();
      const auto now = Clock::now();
      if (!conflict.empty()) {
        if (!conflict_seen) conflict_seen = now;
        if (missing().empty() || now - *conflict_seen > kLinger) condemn(conflict);
      } else if (missing().empty()) {
        return;
      }
      if (is_time_out()) {
        const std::string cause = missing_text(missing());
        report_failure(missing().front(), cause);
        condemn(cause);
      }
      if (now - start_ > silence_) {
        silence_ *= 2;
        TORCH_WARN("[rendezvous] rank ", absl::StrJoin(missing(), ", rank "),
                   " has not come yet; the others wait");
      }
      pause();
    }
  }

  int most_ranks() const {
    int most = options_.world_size;
    for (const auto& [rank, hello] : guests_) most = std::max(most, hello.world_size);
    return most;
  }

  void look_at(int rank) {
    const auto text = words_.hear(hello_key(rank));
    const auto hello = text ? Hello::from_text(*text) : std::nullopt;
    const auto guest = guests_.find(rank);
    // Who was there is asked whether it still is, whoever stands there now.
    if (guest != guests_.end() && guest->second.nonce != own_.nonce) expect_alive(guest->second);
    if (!hello || hello->rank != rank || ended_.count(hello->nonce) != 0) return;
    if (guest != guests_.end() && guest->second.nonce == hello->nonce) return;
    const auto mark = words_.hear(mark_key(hello->nonce));
    if (rank == own_.rank && mark && absl::StartsWith(*mark, kEntered)) {
      // Said after this rank's own Hello, so by a twin; which has met the others meanwhile.
      const std::string cause = twins_text(rank, own_.pid, hello->pid);
      report_failure(-1, cause);
      give_up(cause);
    }
    // A place of our own is new: there every mark is this attempt's.
    if (mark && place_.own != nullptr) return expect_alive(*hello);
    if (mark) {  // of an earlier world or attempt, or gone before it was seen
      ended_.insert(hello->nonce);
      return;
    }
    const Life life = life_of(*hello, false);
    if (life != Life::kTakesPart) {
      if (life == Life::kEnded) ended_.insert(hello->nonce);
      return;
    }
    if (guest == guests_.end()) {
      guests_.emplace(rank, *hello);
    } else {
      twin_ = *hello;
    }
  }

  /// The verdict on all if a guest has ended or given up.
  void expect_alive(const Hello& guest) {
    const auto mark = words_.hear(mark_key(guest.nonce));
    if (mark && absl::StartsWith(*mark, kFailed)) {
      const std::string cause = mark->substr(std::string_view(kFailed).size());
      condemn(absl::StrCat(name_of(guest), " gave up: ", cause));
    }
    if (mark == kGone || (!mark && life_of(guest, true) == Life::kEnded)) {
      const std::string cause = absl::StrCat(name_of(guest), " died before all ranks had met");
      report_failure(guest.rank, cause);
      condemn(cause);
    }
  }

  std::string find_conflict() const {
    if (twin_ && !twin_->has_token(options_.job_token)) {
      return absl::StrCat("pid ", twin_->pid, " came as rank ", twin_->rank,
                          " with another TESSERA_JOB_TOKEN than rank ", options_.rank,
                          ": two jobs meet in one place; give each its own");
    }
    if (twin_) return twins_text(twin_->rank, guests_.at(twin_->rank).pid, twin_->pid);
    const Hello& first = guests_.begin()->second;
    for (const auto& [rank, hello] : guests_) {
      const auto differ = [&first, rank = rank](const char* what, const auto& value,
                                                const auto& expected) {
        return absl::StrCat("rank ", rank, " has ", what, " ", value, " where rank ", first.rank,
                            " has ", expected);
      };
      if (hello.world_size != first.world_size) {
        return absl::StrCat(differ("WORLD_SIZE", hello.world_size, first.world_size),
                            "; start all ranks with one WORLD_SIZE");
      }
      if (hello.build != first.build) {
        return absl::StrCat(differ("a build of", hello.build, first.build),
                            "; run one build of Tessera on all ranks");
      }
      if (hello.device != first.device) {
        return absl::StrCat(differ("the device", hello.device, first.device),
                            "; give all ranks one kind of device");
      }
      if (venue_.is_local() && hello.host != first.host) {
        return absl::StrCat(differ("the host or container", hello.host_name, first.host_name),
                            " and shares no memory with it; on CPUs ranks on several hosts come "
                            "later, with the mpi backend");
      }
      if (hello.has_token(options_.job_token)) continue;
      return absl::StrCat("rank ", rank, " (pid ", hello.pid,
                          ") has another TESSERA_JOB_TOKEN than rank ", options_.rank,
                          "; it may belong to another job");
    }
    return "";
  }

  std::vector<int> missing() const {
    std::vector<int> absent;
    for (int rank = 0; rank < most_ranks(); ++rank) {
      if (guests_.count(rank) == 0) absent.push_back(rank);
    }
    return absent;
  }

  void open_venue() {
    std::vector<int> pids(static_cast<size_t>(options_.world_size));
    for (const auto& [rank, hello] : guests_) pids.at(static_cast<size_t>(rank)) = hello.pid;
    const std::string text = venue_.open(pids);
    for (const auto& [rank, hello] : guests_) {
      words_.say(answer_key(hello.nonce), absl::StrCat(kEnter, own_.nonce, "\n", text));
    }
    words_.say(mark_key(own_.nonce), absl::StrCat(kEntered, own_.nonce));
    pause_shortly_again();
  }

  /// Whether a guest is where this host told it to go. Throws if it is with another one, which it
  /// is left to.
  bool has_entered(const Hello& guest) {
    const auto mark = words_.hear(mark_key(guest.nonce));
    if (!mark || !absl::StartsWith(*mark, kEntered)) return false;
    if (*mark == absl::StrCat(kEntered, own_.nonce)) return true;
    const auto text = words_.hear(hello_key(own_.rank));
    const auto other = text ? Hello::from_text(*text) : std::nullopt;
    const std::string cause = twins_text(own_.rank, own_.pid, other ? other->pid : own_.pid);
    report_failure(-1, cause);
    give_up(cause);
  }

  /// Until every rank is inside.
  void await_all() {
    std::set<int> outside;
    for (const auto& [rank, hello] : guests_) outside.insert(rank);
    while (true) {
      bound_store();
      beat();
      hear_verdict();
      std::erase_if(outside, [&](int rank) {
        const Hello& guest = guests_.at(rank);
        if (guest.nonce == own_.nonce || has_entered(guest)) return true;
        expect_alive(guest);
        return false;
      });
      if (outside.empty()) return;
      if (is_time_out()) {
        const std::string cause = absl::StrCat("timed out after ", options_.timeout.count(),
                                               " ms: rank ", absl::StrJoin(outside, ", rank "),
                                               " came, and did not enter what the ranks share");
        report_failure(*outside.begin(), cause);
        condemn(cause);
      }
      pause();
    }
  }

  /// Gives up for all ranks that are there, so that they say the same.
  [[noreturn]] void condemn(const std::string& cause) {
    const std::string verdict = absl::StrCat(kVerdict, cause);
    if (twin_) words_.say(answer_key(twin_->nonce), verdict);
    for (const auto& [rank, hello] : guests_) words_.say(answer_key(hello.nonce), verdict);
    if (place_.own != nullptr) {  // whoever is connected and has not said Hello yet
      place_.own->close_door();
      words_.say(kVerdictOnAll, cause);
    }
    give_up(cause);
  }

  std::map<int, Hello> guests_;  // by rank; this one, too
  std::optional<Hello> twin_;    // of one of them
  std::chrono::seconds silence_ = kSilence;
  std::set<std::string> ended_;  // nonces that are no part of this attempt
};

/// A rank that is answered.
class Member final : public Meeting {
 public:
  using Meeting::Meeting;

 private:
  void take_part() override {
    while (true) {
      bound_store();
      beat();
      hear_verdict();
      if (const auto answer = words_.hear(answer_key(own_.nonce)); answer && obey(*answer)) return;
      if (place_.own != nullptr) {
        if (const auto verdict = words_.hear(kVerdictOnAll)) give_up(*verdict);
        // Its connection may outlive it in a child.
        TORCH_CHECK(!place_.own->host().has_ended(), place_.own->host().text(),
                    ", where the ranks meet, died before all ranks had met");
      } else {
        expect_host_alive();
      }
      stand_by_hello();
      if (is_time_out(kGrace)) give_up_waiting();
      pause();
    }
  }

  /// Whether the ranks have met.
  bool obey(const std::string& answer) {
    if (answer == kGo && has_entered_) return true;
    const std::vector<std::string> lines = absl::StrSplit(answer, absl::MaxSplits('\n', 2));
    if (has_entered_ || lines.size() != 3 || !absl::StartsWith(answer, kEnter)) return false;
    try {
      venue_.enter(lines[2]);
    } catch (const std::exception& error) {
      const std::string cause = error_text(error);
      report_failure(-1, cause);
      give_up(cause);
    }
    has_entered_ = true;
    words_.say(mark_key(own_.nonce), absl::StrCat(kEntered, lines[1]));
    pause_shortly_again();
    return false;
  }

  /// In a user's store, where rank 0 is the host.
  void expect_host_alive() {
    const auto text = words_.hear(hello_key(0));
    const auto hello = text ? Hello::from_text(*text) : std::nullopt;
    if (!hello || hello->rank != 0) return;
    const bool known = host_nonce_ == hello->nonce;
    const auto mark = words_.hear(mark_key(hello->nonce));
    if (known && mark && absl::StartsWith(*mark, kFailed)) {
      give_up(mark->substr(std::string_view(kFailed).size()));
    }
    if (mark && !absl::StartsWith(*mark, kEntered)) return;
    const Life life = life_of(*hello, known);
    if (known && life == Life::kEnded) {
      const std::string cause = absl::StrCat(name_of(*hello), " died before all ranks had met");
      report_failure(0, cause);
      give_up(cause);
    }
    // One that has met others already is this attempt's only if it says so to this rank.
    if (life == Life::kTakesPart && !mark) host_nonce_ = hello->nonce;
  }

  /// Says its Hello again where another process has said one under its number.
  void stand_by_hello() {
    const auto text = words_.hear(hello_key(options_.rank));
    const auto hello = text ? Hello::from_text(*text) : std::nullopt;
    if (!hello || hello->nonce != own_.nonce) words_.say(hello_key(options_.rank), own_.to_text());
  }

  [[noreturn]] void give_up_waiting() {
    std::vector<int> missing;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!words_.hear(hello_key(rank))) missing.push_back(rank);
    }
    const HostName host = place_.own != nullptr ? place_.own->host() : HostName();
    const std::string cause =
        !missing.empty() ? missing_text(missing)
                         : absl::StrCat("timed out after ", options_.timeout.count(),
                                        " ms: ", place_.own != nullptr ? host.text() : "rank 0",
                                        " did not answer, although all ranks came");
    report_failure(missing.empty() ? host.rank : missing.front(), cause);
    give_up(cause);
  }

  std::string host_nonce_;
  bool has_entered_ = false;
};

/// The page that the processes of one host share.
class SharedPage final : public Venue {
 public:
  SharedPage(JobStore* store, int rank, int world_size)
      : store_(store), rank_(rank), world_size_(world_size) {}

  bool is_local() const override { return true; }

  std::string open(const std::vector<int>& pids) override {
    world_ = shm::World::create(pids, rank_);
    if (store_ != nullptr) store_->lend(kPage, world_->segment()->fd());
    return range_text(world_->page());
  }

  void enter(const std::string& text) override {
    const auto range = parse_range(text);
    TORCH_CHECK(range.has_value(), "[rendezvous] got '", text,
                "' as the place of the shared page, expected five numbers; run one build of "
                "Tessera on all ranks");
    world_ = shm::World::open(rank_, world_size_, *range,
                              store_ != nullptr ? store_->borrow(kPage) : FileDescriptor());
  }

  std::shared_ptr<shm::World> take_world() { return std::move(world_); }

 private:
  JobStore* const store_;
  const int rank_;
  const int world_size_;
  std::shared_ptr<shm::World> world_;
};

/// Keys of the store that nobody else uses.
class Prefix final : public Venue {
 public:
  bool is_local() const override { return false; }

  std::string open(const std::vector<int>& /*pids*/) override {
    return text_ = absl::StrCat("tessera/world/", Seal::new_nonce());
  }

  void enter(const std::string& text) override { text_ = text; }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void hold(const Place& place, const HandshakeOptions& options, Venue& venue) {
  if (place.is_host) {
    Host(place, options, venue).run();
  } else {
    Member(place, options, venue).run();
  }
  place.store->setTimeout(bounded(options.timeout));
}

}  // namespace

std::shared_ptr<shm::World> meet(const Place& place, const HandshakeOptions& options) {
  SharedPage page(place.own, options.rank, options.world_size);
  hold(place, options, page);
  return page.take_world();
}

std::string meet_on_store(const Place& place, const HandshakeOptions& options) {
  Prefix prefix;
  hold(place, options, prefix);
  return prefix.text();
}

}  // namespace tessera
