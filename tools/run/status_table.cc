#include "tessera/tools/run/status_table.h"

#include <cstdio>
#include <optional>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

std::string rounded(const std::optional<double>& number) {
  if (!number) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), *number < 100 ? "%.2f" : "%.0f", *number);
  return text;
}

std::string positive(int64_t number) { return number > 0 ? absl::StrCat(number) : "-"; }

std::string row(const std::string& rank, const std::string& pid, const std::string& step,
                const std::string& ago, const std::string& rate, const std::string& ratio,
                const std::string& state) {
  char text[160];
  std::snprintf(text, sizeof(text), "%5s %9s %9s %12s %8s %6s  ", rank.c_str(), pid.c_str(),
                step.c_str(), ago.c_str(), rate.c_str(), ratio.c_str());
  return absl::StrCat(text, state, "\n");
}

template <typename Value>
nlohmann::json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json json_of(const JobStatus& status, const RankStatus& rank) {
  nlohmann::json json = {{"rank", rank.rank},
                         {"pid", rank.pid},
                         {"state", state_name(rank.state)},
                         {"text", describe_state(status, rank.rank)},
                         {"phase", phase_name(rank.phase)},
                         {"step", rank.step},
                         {"seconds_since_step", or_null(rank.step_age_s)},
                         {"steps_per_second", or_null(rank.steps_per_s)},
                         {"own_seconds_per_step", or_null(rank.own_s)},
                         {"straggler_ratio", or_null(rank.ratio)},
                         {"silent_seconds", or_null(rank.silent_s)},
                         {"wait", nullptr},
                         {"exit_code", nullptr}};
  if (rank.wait) {
    json["wait"] = {{"call", rank.wait->call},     {"group", rank.wait->group},
                    {"number", rank.wait->number}, {"seconds", rank.wait_s},
                    {"ranks", rank.wait->ranks},   {"awaited", rank.wait->awaited}};
  }
  if (rank.exit_status) json["exit_code"] = rank.exit_status->exit_code();
  return json;
}

}  // namespace

std::string status_table(const FoundJob& job, const JobStatus& status) {
  const JobOutline& outline = status.outline;
  std::string text = absl::StrCat("job ", job.launcher, ": ", job.program, "\n");
  absl::StrAppend(&text, "running for ", duration_text(status.age_s));
  if (outline.max_restarts > 0 || outline.restart_count > 0) {
    absl::StrAppend(&text, ", restart ", outline.restart_count);
  }
  if (status.saved_step > 0) absl::StrAppend(&text, ", saved step ", status.saved_step);
  if (outline.is_supervised) absl::StrAppend(&text, "; the command's rank 0, if it is known");
  absl::StrAppend(&text, "\n\n");
  text += row("rank", "pid", "step", "last step", "steps/s", "ratio", "state");
  for (const RankStatus& rank : status.ranks) {
    const std::string ago = rank.step_age_s ? duration_text(*rank.step_age_s) + " ago" : "-";
    text += row(absl::StrCat(rank.rank), positive(rank.pid), positive(rank.step), ago,
                rounded(rank.steps_per_s), rounded(rank.ratio), describe_state(status, rank.rank));
  }
  return text;
}

std::string status_json(const FoundJob& job, const JobStatus& status) {
  nlohmann::json json = {{"job", job.launcher},
                         {"program", job.program},
                         {"seconds", status.age_s},
                         {"restart", status.outline.restart_count},
                         {"max_restarts", status.outline.max_restarts},
                         {"supervised", status.outline.is_supervised},
                         {"heartbeat_timeout_ms", status.outline.heartbeat_timeout_ms},
                         {"saved_step", status.saved_step},
                         {"ranks", nlohmann::json::array()}};
  for (const RankStatus& rank : status.ranks) json["ranks"].push_back(json_of(status, rank));
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::internal
