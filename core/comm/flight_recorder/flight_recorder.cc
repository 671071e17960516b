#include "tessera/core/comm/flight_recorder/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "tessera/core/process/process_status.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

// The only word that end() changes.
constexpr size_t kEndWord = offsetof(FlightRecord, end_ns) / sizeof(uint64_t);

std::string ago(int64_t then_ns, int64_t now_ns) {
  return absl::StrFormat("%.3f s ago", static_cast<double>(now_ns - then_ns) / 1e9);
}

std::string times_of(const FlightRecord& call, int64_t now_ns) {
  const std::string began = absl::StrCat("began ", ago(call.begin_ns, now_ns));
  if (call.end_ns == 0) return absl::StrCat(began, ", not over");
  return absl::StrFormat("%s, took %.3f ms", began,
                         static_cast<double>(call.end_ns - call.begin_ns) / 1e6);
}

/// Returns " (pid 7 on nodeB)"; "" if neither is known.
std::string place_of(const RankFlight& rank) {
  if (rank.pid == 0) return rank.host.empty() ? "" : absl::StrCat(" (on ", rank.host, ")");
  return absl::StrCat(" (pid ", rank.pid, rank.host.empty() ? "" : " on ", rank.host, ")");
}

/// Describes a rank that other ranks wait for: its state, and its first call under way or, if there
/// is none, its last call.
std::string last_seen(const RankFlight& rank, int64_t now_ns) {
  const std::string state =
      absl::StrCat("rank ", rank.rank, place_of(rank), ", which ", rank.state, ", last seen ");
  if (rank.records.empty()) return absl::StrCat(state, "nowhere");
  // If several calls are under way, the rank waits in the first.
  const auto open = std::ranges::find(rank.records, 0, &FlightRecord::end_ns);
  if (open != rank.records.end()) {
    return absl::StrCat(state, "in ", open->text(), ", begun ", ago(open->begin_ns, now_ns));
  }
  const FlightRecord& last = rank.records.back();
  return absl::StrCat(state, "in ", last.text(), ", over ", ago(last.end_ns, now_ns));
}

}  // namespace

int64_t flight_time_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string FlightRecord::text() const {
  return absl::StrCat(sequence >= 0 ? absl::StrCat("#", sequence, " ") : std::string(),
                      describe(signature, tag.beginning()), " on group '",
                      std::string(group.beginning()), "'");
}

uint64_t FlightRing::begin(const CallSignature& signature, int64_t sequence, std::string_view tag,
                           std::string_view group) {
  FlightRecord record;
  record.sequence = sequence;
  record.begin_ns = flight_time_ns();
  record.signature = signature;
  record.tag.set(tag);
  record.group.set(group);
  Words words;
  std::memcpy(words.data(), &record, sizeof(record));
  const uint64_t number = begun_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[number % kRecords];
  // If this thread was delayed here while other threads made kRecords calls, the slot keeps the
  // later call.
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  if (version > number || !slot.version.compare_exchange_strong(version, kWritten)) return number;
  // The words are stored with release order, so a reader that sees a new word also sees that
  // `version` has changed.
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(number + 1, std::memory_order_release);
  return number;
}

void FlightRing::end(uint64_t number) {
  Slot& slot = slots_[number % kRecords];
  if (slot.version.load(std::memory_order_relaxed) != number + 1) return;
  slot.words[kEndWord].store(static_cast<uint64_t>(flight_time_ns()), std::memory_order_relaxed);
}

bool FlightRing::read(uint64_t number, FlightRecord& record) const {
  const Slot& slot = slots_[number % kRecords];
  if (slot.version.load(std::memory_order_acquire) != number + 1) return false;
  Words words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != number + 1) return false;
  std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
  return true;
}

std::vector<FlightRecord> FlightRing::last() const {
  const uint64_t end = begun();
  std::vector<FlightRecord> records;
  const uint64_t kept = std::min(end, kRecords);
  for (uint64_t number = end - kept; number < end; ++number) {
    FlightRecord record;
    if (read(number, record)) records.push_back(record);
  }
  return records;
}

std::string process_state(int pid) {
  if (pid == ::getpid()) return "is a thread of this process";
  const std::optional<ProcessStatus> status = process_status(pid);
  if (!status || status->has_ended()) return "is gone";
  const std::string text = status->describe();
  if (text == "computes" || text == "sleeps") return absl::StrCat("runs (", text, ")");
  return text.empty() ? "runs" : text;
}

std::string merged_text(const std::vector<RankFlight>& ranks, std::string_view cause,
                        int64_t now_ns) {
  std::string text = absl::StrCat("flight recorder\ncause: ", std::string(cause), "\n");
  for (const RankFlight& rank : ranks) {
    absl::StrAppend(&text, "rank ", rank.rank, place_of(rank), " ", rank.state, "; ", rank.begun,
                    " calls, the last:\n");
    for (const FlightRecord& call : rank.records) {
      absl::StrAppend(&text, "  ", call.text(), ", ", times_of(call, now_ns), "\n");
    }
  }
  return text;
}

std::string flight_dump_directory() {
  return process_environment("TESSERA_FLIGHT_DUMP").value_or("");
}

void write_flight_dump(const std::string& directory, int rank, const std::vector<RankFlight>& ranks,
                       std::string_view cause, std::string_view name) noexcept {
  if (directory.empty()) return;
  try {
    const std::string path =
        absl::StrCat(directory, "/", std::string(name), "-", rank, "-", ::getpid(), ".txt");
    std::error_code ignored;  // opening the file below reports the error
    std::filesystem::create_directories(directory, ignored);
    errno = 0;
    std::ofstream file(path, std::ios::trunc);
    file << merged_text(ranks, cause, flight_time_ns());
    file.close();
    if (file) {
      std::fprintf(stderr, "[comm] flight recorder: wrote %s\n", path.c_str());
    } else {
      std::fprintf(stderr, "[comm] flight recorder: cannot write '%s' (%s)\n", path.c_str(),
                   std::strerror(errno));
    }
  } catch (const std::exception&) {  // no memory for the dump
  }
}

std::string wait_report(std::string_view call, std::string_view waiter,
                        std::chrono::milliseconds waited, const std::vector<RankFlight>& missing) {
  std::string text = absl::StrCat(std::string(call), ": ", std::string(waiter), " has waited ",
                                  waited.count(), " ms for ");
  const int64_t now_ns = flight_time_ns();
  for (size_t i = 0; i < missing.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; and for ", last_seen(missing[i], now_ns));
  }
  return text;
}

}  // namespace tessera::internal
