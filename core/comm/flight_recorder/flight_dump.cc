#include "tessera/core/comm/flight_recorder/flight_dump.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/process/process_status.h"
#include "tessera/environment.h"

namespace tessera::internal {
namespace {

using Json = nlohmann::ordered_json;

// Of each rank in the text; all are in the JSON.
constexpr size_t kShownCalls = 8;

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
      if (call.sequence >= 0) groups[call.group()][call.sequence][rank.rank] = &call;
    }
  }
  return groups;
}

/// Two ranks' calls with one number that differ; null if there are none.
struct Difference {
  int rank = 0;
  int other = 0;
  const FlightRecord* call = nullptr;
  const FlightRecord* other_call = nullptr;
};

Difference find_differing(const std::map<std::string, CallsOfGroup>& groups) {
  Difference first;
  for (const auto& [name, calls] : groups) {
    for (const auto& [sequence, of_rank] : calls) {
      const auto& [base_rank, base] = *of_rank.begin();
      for (const auto& [rank, call] : of_rank) {
        if (is_same_call(*base, *call)) continue;
        if (first.call != nullptr && first.call->begin_ns <= base->begin_ns) continue;
        first = {base_rank, rank, base, call};
      }
    }
  }
  return first;
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

/// What some ranks are in, in a group of which others have no record: they may have used it longer
/// ago, or are not in it.
std::string describe_open(const std::map<std::string, CallsOfGroup>& groups,
                          const std::vector<RankFlight>& ranks) {
  std::vector<std::string> texts;
  for (const auto& [name, calls] : groups) {
    std::set<int> known;
    for (const auto& [sequence, of_rank] : calls) {
      for (const auto& [rank, call] : of_rank) known.insert(rank);
    }
    const auto& last = calls.rbegin()->second;
    std::vector<std::string> open, unknown;
    for (const auto& [rank, call] : last) {
      if (call->end_ns == 0) open.push_back(absl::StrCat(rank));
    }
    for (const RankFlight& rank : ranks) {
      if (known.count(rank.rank) == 0) unknown.push_back(absl::StrCat(rank.rank));
    }
    if (open.empty() || unknown.empty()) continue;
    texts.push_back(absl::StrCat(
        "rank ", absl::StrJoin(open, ", "), " is in ", last.begin()->second->text(),
        ", a group that the last calls of rank ", absl::StrJoin(unknown, ", "), " do not have"));
  }
  return absl::StrJoin(texts, "; ");
}

/// " (pid 7 on nodeB)".
std::string place_of(const RankFlight& rank) {
  if (rank.pid == 0) return rank.host.empty() ? "" : absl::StrCat(" (on ", rank.host, ")");
  return absl::StrCat(" (pid ", rank.pid, rank.host.empty() ? "" : " on ", rank.host, ")");
}

Json json_of(const FlightRecord& call) {
  const OpTraits traits = internal::traits_of(call.signature.op);
  Json json = {{"group", call.group()}, {"sequence", call.sequence}, {"op", traits.name}};
  if (traits.reduces) json["reduce"] = to_string(call.signature.reduce);
  if (call.signature.numel >= 0) {
    json["dtype"] = dtype_name(call.signature.dtype);
    json["numel"] = call.signature.numel;
  }
  if (call.signature.peer != kNoPeer) json["peer"] = call.signature.peer;
  json["tag"] = call.tag.beginning();
  json["begin_ns"] = call.begin_ns;
  json["end_ns"] = call.end_ns;
  json["is_over"] = call.end_ns != 0;
  return json;
}

bool write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    std::fprintf(stderr, "[comm] flight recorder: cannot write '%s' (%s)\n", path.c_str(),
                 std::strerror(errno));
  }
  return static_cast<bool>(file);
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
  if (const Difference found = find_differing(groups); found.call != nullptr) {
    return absl::StrCat("rank ", found.rank, " called ", found.call->text(), " where rank ",
                        found.other, " called ", found.other_call->text());
  }
  const std::string missing = describe_missing(groups);
  if (!missing.empty()) return missing;
  const std::string open = describe_open(groups, ranks);
  return open.empty() ? "none: the ranks' last calls agree"
                      : absl::StrCat("none in one group; ", open);
}

std::string merged_text(const std::vector<RankFlight>& ranks, std::string_view cause,
                        int64_t now_ns) {
  std::string text = absl::StrCat("flight recorder\ncause: ", std::string(cause),
                                  "\nfirst difference: ", first_difference(ranks), "\n");
  for (const RankFlight& rank : ranks) {
    absl::StrAppend(&text, "rank ", rank.rank, place_of(rank), " ", rank.state, "; ", rank.begun,
                    " calls, the last:\n");
    const size_t skipped =
        rank.records.size() > kShownCalls ? rank.records.size() - kShownCalls : 0;
    for (size_t i = skipped; i < rank.records.size(); ++i) {
      absl::StrAppend(&text, "  ", rank.records[i].text(), ", ", times_of(rank.records[i], now_ns),
                      "\n");
    }
  }
  return text;
}

std::string to_json(const std::vector<RankFlight>& ranks, std::string_view cause, int64_t now_ns) {
  Json list = Json::array();
  for (const RankFlight& rank : ranks) {
    Json calls = Json::array();
    for (const FlightRecord& call : rank.records) calls.push_back(json_of(call));
    list.push_back({{"rank", rank.rank},
                    {"pid", rank.pid},
                    {"host", rank.host},
                    {"state", rank.state},
                    {"begun", rank.begun},
                    {"calls", std::move(calls)}});
  }
  const Json all = {{"cause", cause},
                    {"first_difference", first_difference(ranks)},
                    {"time_ns", now_ns},
                    {"ranks", std::move(list)}};
  // A tag may be cut inside a character; an error must not hide the failure that is written down.
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string flight_dump_directory() {
  return process_environment("TESSERA_FLIGHT_DUMP").value_or("");
}

void check_flight_dump_directory() {
  const std::string directory = flight_dump_directory();
  if (directory.empty()) return;
  if (::access(absl::StrCat(directory, "/.").c_str(), W_OK | X_OK) == 0) return;
  const int error = errno;
  const bool can_be_made = error == ENOENT && directory.front() != '~';  // which no shell has seen
  TORCH_CHECK(false, "[environment] TESSERA_FLIGHT_DUMP: got '", directory,
              "', expected a folder that this process may write to (", std::strerror(error), "); ",
              can_be_made ? absl::StrCat("make it: mkdir -p ", directory) : "name another one");
}

void write_flight_dump(const std::string& directory, int rank, const std::vector<RankFlight>& ranks,
                       std::string_view cause, std::string_view name) noexcept {
  try {
    const int64_t now_ns = flight_time_ns();
    const std::string path =
        absl::StrCat(directory, "/", std::string(name), "-", rank, "-", ::getpid());
    const bool has_json = write_file(path + ".json", to_json(ranks, cause, now_ns));
    const bool has_text = write_file(path + ".txt", merged_text(ranks, cause, now_ns));
    if (!has_json || !has_text) return;
    std::fprintf(stderr, "[comm] flight recorder: wrote %s.json and .txt; first difference: %s\n",
                 path.c_str(), first_difference(ranks).c_str());
  } catch (const std::exception&) {  // no memory; the error itself goes on
  }
}

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
