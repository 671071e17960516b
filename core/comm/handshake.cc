#include "tessera/core/comm/handshake.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/failure_report.h"
#include "tessera/core/comm/hello.h"
#include "tessera/core/comm/time_out.h"
#include "tessera/core/errors.h"

namespace tessera {
namespace {

// Note [Handshake]
// ~~~~~~~~~~~~~~~~
// A store may hold keys of an earlier attempt, and two processes may believe that they are the same
// rank. So every call of init_process_group writes a Hello with a random nonce into a roster that
// only grows, and every rank reads the whole roster. Entries of processes that have ended, and of
// earlier worlds of a process that still runs, are no part of this attempt. Rank 0 waits until each
// rank has exactly one live entry and answers with a welcome that lists the nonces it chose and
// where the shared page lies; a rank joins only by a welcome that lists its own nonce. Whoever sees
// a conflict waits a moment for the other ranks to come, then writes the verdict for each nonce it
// sees, so that all ranks fail with one text.

using Clock = std::chrono::steady_clock;

constexpr auto kLinger = std::chrono::seconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(20);

const char* const kRoster = "tessera/roster";

std::string entry_key(int64_t number) { return absl::StrCat("tessera/roster/", number); }
std::string mark_key(const std::string& nonce) { return absl::StrCat("tessera/mark/", nonce); }
std::string verdict_key(const std::string& nonce) {
  return absl::StrCat("tessera/verdict/", nonce);
}
std::string welcome_key(const std::string& nonce) {
  return absl::StrCat("tessera/welcome/", nonce);
}

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
  /// Rank 0, which knows all processes: one line of text that leads the others there.
  virtual std::string open(const std::vector<int>& pids) = 0;
  /// The other ranks. False if the text leads nowhere.
  virtual bool enter(const std::string& text) = 0;
};

/// One attempt of one rank to meet the others.
class Meeting {
 public:
  Meeting(c10d::Store& store, const HandshakeOptions& options, Venue& venue)
      : store_(store),
        options_(options),
        venue_(venue),
        own_(Hello::of_this_process(options.rank, options.world_size, options.job_token,
                                    options.device)) {}

  void run() {
    const auto start = Clock::now();
    std::optional<Clock::time_point> conflict_seen;
    auto pause = std::chrono::milliseconds(1);
    post();
    while (true) {
      if (join()) return;
      read_roster();
      if (const auto verdict = read(verdict_key(own_.nonce))) give_up(*verdict);
      const std::string conflict = find_conflict();
      const auto now = Clock::now();
      if (!conflict.empty()) {
        if (!conflict_seen) conflict_seen = now;
        if (missing().empty() || now - *conflict_seen > kLinger) {
          condemn(conflict);
        }
      } else if (options_.rank == 0 && missing().empty()) {
        welcome();
        return;
      }
      if (now - start > bounded(options_.timeout)) {
        const std::string cause = time_out_text();
        report_failure(missing().empty() ? 0 : missing().front(), cause);
        condemn(cause);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }

  [[noreturn]] void give_up(const std::string& cause) {
    try {
      store_.set(mark_key(own_.nonce), "failed");
    } catch (const std::exception&) {  // the store may be what failed
    }
    throw CommError({"init_process_group", "world", -1, options_.rank, ""}, cause);
  }

 private:
  /// Gives up for all ranks that are there, so that they say the same.
  [[noreturn]] void condemn(const std::string& cause) {
    for (const Hello& hello : live_) store_.set(verdict_key(hello.nonce), cause);
    give_up(cause);
  }

  std::optional<std::string> read(const std::string& key) {
    if (!store_.check({key})) return std::nullopt;
    return store_.get_to_str(key);
  }

  void post() {
    const int64_t number = store_.add(kRoster, 1);
    store_.set(entry_key(number), own_.to_text());
  }

  /// Reads entries that are new and sorts out which belong to this attempt.
  void read_roster() {
    const int64_t count = store_.add(kRoster, 0);
    for (int64_t number = 1; number <= count; ++number) {
      if (entries_.count(number) != 0) continue;
      const auto text = read(entry_key(number));
      if (!text) continue;  // counted, and about to be written
      if (const auto hello = Hello::from_text(*text)) entries_[number] = *hello;
    }
    live_.clear();
    for (const auto& [number, hello] : entries_) {
      if (belongs(hello)) live_.push_back(hello);
    }
  }

  bool belongs(const Hello& hello) {
    if (hello.nonce == own_.nonce) return true;
    if (ended_.count(hello.nonce) != 0) return false;
    const bool same_host = hello.host == own_.host;
    const auto mark = read(mark_key(hello.nonce));
    if (mark == "failed" || (mark == "met" && !is_rival(hello))) {
      ended_.insert(hello.nonce);
      return false;
    }
    if (same_host && hello.pid != own_.pid && !hello.is_alive()) {
      ended_.insert(hello.nonce);
      if (seen_alive_.count(hello.nonce) == 0) return false;  // left over from an earlier attempt
      const std::string cause =
          absl::StrCat("rank ", hello.rank, " (pid ", hello.pid, ") died before all ranks had met");
      report_failure(hello.rank, cause);
      give_up(cause);
    }
    seen_alive_.insert(hello.nonce);
    return true;
  }

  /// Another process that has this rank's number in a world that exists already.
  bool is_rival(const Hello& hello) const {
    return hello.rank == own_.rank && hello.pid != own_.pid && hello.host == own_.host;
  }

  std::string find_conflict() const {
    std::map<int, const Hello*> by_rank;
    for (const Hello& hello : live_) {
      const Hello*& other = by_rank[hello.rank];
      if (other != nullptr) {
        const auto pids = std::minmax(other->pid, hello.pid);
        return absl::StrCat("RANK ", hello.rank, " was given twice, to pid ", pids.first,
                            " and to pid ", pids.second, "; give each process its own RANK");
      }
      other = &hello;
    }
    const Hello& first = *by_rank.begin()->second;
    for (const auto& [rank, hello] : by_rank) {
      const auto differ = [&first, rank = rank](const char* what, const auto& value,
                                                const auto& expected) {
        return absl::StrCat("rank ", rank, " has ", what, " ", value, " where rank ", first.rank,
                            " has ", expected);
      };
      if (hello->world_size != first.world_size) {
        return absl::StrCat(differ("WORLD_SIZE", hello->world_size, first.world_size),
                            "; start all ranks with one WORLD_SIZE");
      }
      if (hello->build != first.build) {
        return absl::StrCat(differ("a build of", hello->build, first.build),
                            "; run one build of Tessera on all ranks");
      }
      if (hello->device != first.device) {
        return absl::StrCat(differ("the device", hello->device, first.device),
                            "; give all ranks one kind of device");
      }
      if (venue_.is_local() && hello->host != first.host) {
        return absl::StrCat(differ("the host or container", hello->host_name, first.host_name),
                            " and shares no memory with it; on CPUs ranks on several hosts come "
                            "later, with the mpi backend");
      }
      if (hello->has_token(options_.job_token)) continue;
      return absl::StrCat("rank ", rank, " (pid ", hello->pid,
                          ") has another TESSERA_JOB_TOKEN than rank ", options_.rank,
                          "; it may belong to another job");
    }
    return "";
  }

  std::vector<int> missing() const {
    std::set<int> present;
    for (const Hello& hello : live_) present.insert(hello.rank);
    std::vector<int> absent;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (present.count(rank) == 0) absent.push_back(rank);
    }
    return absent;
  }

  std::string time_out_text() const {
    const std::vector<int> absent = missing();
    if (absent.empty()) {
      return absl::StrCat("timed out after ", options_.timeout.count(),
                          " ms: rank 0 did not answer, although all ranks came");
    }
    return absl::StrCat("timed out after ", options_.timeout.count(), " ms: rank ",
                        absl::StrJoin(absent, ", rank "), " did not come");
  }

  /// Rank 0: all are there.
  void welcome() {
    std::vector<int> pids(options_.world_size);
    std::vector<std::string> nonces(options_.world_size);
    for (const Hello& hello : live_) {
      pids[hello.rank] = hello.pid;
      nonces[hello.rank] = hello.nonce;
    }
    store_.set(welcome_key(own_.nonce),
               absl::StrCat(venue_.open(pids), "\n", absl::StrJoin(nonces, "\n")));
    store_.set(mark_key(own_.nonce), "met");
  }

  /// Other ranks: whether a rank 0 has chosen this very process.
  bool join() {
    if (options_.rank == 0) return false;
    for (const auto& [number, hello] : entries_) {
      if (hello.rank != 0 || (venue_.is_local() && hello.host != own_.host)) continue;
      const auto text = read(welcome_key(hello.nonce));
      if (!text) continue;
      const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
      const auto index = static_cast<size_t>(options_.rank) + 1;
      if (index >= lines.size() || lines[index] != own_.nonce) continue;
      if (!venue_.enter(lines[0])) continue;
      store_.set(mark_key(own_.nonce), "met");
      return true;
    }
    return false;
  }

  c10d::Store& store_;
  const HandshakeOptions& options_;
  Venue& venue_;
  const Hello own_;
  std::map<int64_t, Hello> entries_;  // by their number in the roster
  std::set<std::string> ended_;       // nonces that are no part of this attempt
  std::set<std::string> seen_alive_;
  std::vector<Hello> live_;
};

/// The page that the processes of one host share.
class SharedPage final : public Venue {
 public:
  SharedPage(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  bool is_local() const override { return true; }

  std::string open(const std::vector<int>& pids) override {
    world_ = shm::World::create(pids);
    return range_text(world_->page());
  }

  bool enter(const std::string& text) override {
    const auto range = parse_range(text);
    if (range) world_ = shm::World::open(rank_, world_size_, *range);
    return range.has_value();
  }

  std::shared_ptr<shm::World> take_world() { return std::move(world_); }

 private:
  const int rank_;
  const int world_size_;
  std::shared_ptr<shm::World> world_;
};

/// Keys of the store that nobody else uses.
class Prefix final : public Venue {
 public:
  bool is_local() const override { return false; }

  std::string open(const std::vector<int>& /*pids*/) override {
    return text_ = absl::StrCat("tessera/world/", Hello::new_nonce());
  }

  bool enter(const std::string& text) override {
    text_ = text;
    return true;
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void hold(Meeting meeting) {
  try {
    meeting.run();
  } catch (const c10::Error& error) {
    meeting.give_up(absl::StrCat("the store failed: ", error.what_without_backtrace()));
  }
}

}  // namespace

std::shared_ptr<shm::World> meet(c10d::Store& store, const HandshakeOptions& options) {
  SharedPage page(options.rank, options.world_size);
  hold(Meeting(store, options, page));
  return page.take_world();
}

std::string meet_on_store(c10d::Store& store, const HandshakeOptions& options) {
  Prefix prefix;
  hold(Meeting(store, options, prefix));
  return prefix.text();
}

}  // namespace tessera
