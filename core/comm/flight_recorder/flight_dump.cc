#include "tessera/core/comm/flight_recorder/flight_dump.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <system_error>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "tessera/core/process/process_status.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

std::string ago(int64_t then_ns, int64_t now_ns) {
  return absl::StrFormat("%.3f s ago", static_cast<double>(now_ns - then_ns) / 1e9);
}

std::string times_of(const FlightRecord& call, int64_t now_ns) {
  const std::string began = absl::StrCat("began ", ago(call.begin_ns, now_ns));
  if (call.end_ns == 0) return absl::StrCat(began, ", not over");
  return absl::StrFormat("%s, took %.3f ms", began,
                         static_cast<double>(call.end_ns - call.begin_ns) / 1e6);
}

bool is_same_call(const FlightRecord& a, const FlightRecord& b) {
  return a.signature == b.signature && a.tag == b.tag;
}

/// The calls of one group by sequence, then by rank.
using CallsOfGroup = std::map<int64_t, std::map<int, const FlightRecord*>>;

std::map<std::string, CallsOfGroup> by_group(const std::vector<RankFlight>& ranks) {
  std::map<std::string, CallsOfGroup> groups;
  for (const RankFlight& rank : ranks) {
    for (const FlightRecord& call : rank.records) {
      if (call.sequence >= 0)
        groups[std::string(call.group.beginning())][call.sequence][rank.rank] = &call;
    }
  }
  return groups;
}

/// Two ranks' calls with one number that differ, the earliest ones; "" if there are none.
std::string describe_differing(const std::map<std::string, CallsOfGroup>& groups) {
  std::string text;
  int64_t earliest_ns = std::numeric_limits<int64_t>::max();
  for (const auto& [name, calls] : groups) {
    for (const auto& [sequence, of_rank] : calls) {
      const auto& [base_rank, base] = *of_rank.begin();
      for (const auto& [rank, call] : of_rank) {
        if (is_same_call(*base, *call) || base->begin_ns >= earliest_ns) continue;
        earliest_ns = base->begin_ns;
        text = absl::StrCat("rank ", base_rank, " called ", base->text(), " where rank ", rank,
                            " called ", call->text());
      }
    }
  }
  return text;
}

/// What some ranks have begun last and others have not, group by group.
std::string describe_missing(const std::map<std::string, CallsOfGroup>& groups) {
  std::vector<std::string> texts;
  for (const auto& [name, calls] : groups) {
    std::map<int, const FlightRecord*> last_of;  // of the ranks that have used the group
    for (const auto& [sequence, of_rank] : calls) {
      for (const auto& [rank, call] : of_rank) last_of[rank] = call;
    }
    const auto& [last, there] = *calls.rbegin();
    std::vector<std::string> begun, missing;
    for (const auto& [rank, call] : last_of) {
      if (there.count(rank) != 0) {
        begun.push_back(absl::StrCat(rank));
      } else {
        missing.push_back(absl::StrCat("rank ", rank, ", whose last there is ", call->text()));
      }
    }
    if (missing.empty()) continue;
    texts.push_back(absl::StrCat("rank ", absl::StrJoin(begun, ", "), " has begun ",
                                 there.begin()->second->text(), ", but not ",
                                 absl::StrJoin(missing, ", nor ")));
  }
  return absl::StrJoin(texts, "; ");
}

/// " (pid 7 on nodeB)".
std::string place_of(const RankFlight& rank) {
  if (rank.pid == 0) return rank.host.empty() ? "" : absl::StrCat(" (on ", rank.host, ")");
  return absl::StrCat(" (pid ", rank.pid, rank.host.empty() ? "" : " on ", rank.host, ")");
}

/// Of a rank that others wait for: its state, and the first of its calls that are under way, else
/// the last.
std::string last_seen(const RankFlight& rank, int64_t now_ns) {
  const std::string state =
      absl::StrCat("rank ", rank.rank, place_of(rank), ", which ", rank.state, ", last seen ");
  if (rank.records.empty()) return absl::StrCat(state, "nowhere");
  // Of several that are under way it waits in the first.
  const auto open = std::find_if(rank.records.begin(), rank.records.end(),
                                 [](const FlightRecord& record) { return record.end_ns == 0; });
  if (open != rank.records.end()) {
    return absl::StrCat(state, "in ", open->text(), ", begun ", ago(open->begin_ns, now_ns));
  }
  const FlightRecord& last = rank.records.back();
  return absl::StrCat(state, "in ", last.text(), ", over ", ago(last.end_ns, now_ns));
}

}  // namespace

std::string process_state(int pid) {
  if (pid == ::getpid()) return "is a thread of this process";
  const std::optional<ProcessStatus> status = process_status(pid);
  if (!status || status->has_ended()) return "is gone";
  const std::string text = status->describe();
  if (text == "computes" || text == "sleeps") return absl::StrCat("runs (", text, ")");
  return text.empty() ? "runs" : text;
}

std::string first_difference(const std::vector<RankFlight>& ranks) {
  const auto groups = by_group(ranks);
  const std::string differing = describe_differing(groups);
  if (!differing.empty()) return differing;
  const std::string missing = describe_missing(groups);
  return missing.empty() ? "none: the ranks' last calls agree" : missing;
}

std::string merged_text(const std::vector<RankFlight>& ranks, std::string_view cause,
                        int64_t now_ns) {
  std::string text = absl::StrCat("flight recorder\ncause: ", std::string(cause),
                                  "\nfirst difference: ", first_difference(ranks), "\n");
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
  try {
    const std::string path =
        absl::StrCat(directory, "/", std::string(name), "-", rank, "-", ::getpid(), ".txt");
    std::error_code ignored;  // a file that cannot be written says the same
    std::filesystem::create_directories(directory, ignored);
    errno = 0;
    std::ofstream file(path, std::ios::trunc);
    file << merged_text(ranks, cause, flight_time_ns());
    file.close();
    if (file) {
      std::fprintf(stderr, "[comm] flight recorder: wrote %s; first difference: %s\n", path.c_str(),
                   first_difference(ranks).c_str());
    } else {
      std::fprintf(stderr, "[comm] flight recorder: cannot write '%s' (%s)\n", path.c_str(),
                   std::strerror(errno));
    }
  } catch (const std::exception&) {  // no memory; the error itself goes on
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
