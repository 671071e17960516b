#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/engine/checkpoint_names.h"
#include "tessera/checkpoint/engine/model_source.h"
#include "tessera/checkpoint/engine/step_load.h"
#include "tessera/checkpoint/engine/step_save.h"
#include "tessera/checkpoint/engine/step_source.h"
#include "tessera/checkpoint/files/retrying_file_system.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/engine.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

namespace {

constexpr const char* kDamaged = "damaged\n";

/// Returns this rank's report on a step, for the other ranks: "" if the step can be used, else the
/// kind of problem and the message.
std::string report_of(const absl::Status& status) {
  if (status.ok()) return "";
  if (is_damage(status)) return absl::StrCat(kDamaged, status.message());
  const char* const remedy =
      is_transient(status)
          ? "; nothing was changed, and the step may be whole: start again when it can be "
            "read, or name an older one by LoadOptions::step"
          : "";
  return absl::StrCat("other\n", status.message(), remedy);
}

/// The ranks' joint result about a step.
struct Verdict {
  bool is_damaged = false;  ///< rank 0 finds damage, and no rank finds another kind of problem
  std::string problem;      ///< refusal_text() of all ranks' problems; "" if the step can be used
};

/// Combines the ranks' results. Only rank 0 sets a damaged step aside, and it must find the damage
/// itself, because damage that another rank finds may be only in that rank's memory or in its
/// host's cache. So if only other ranks find damage, rank 0 checks the whole step with
/// `look_again`.
Verdict verdict_of(ProcessGroup& group, const absl::Status& status,
                   const std::function<absl::Status()>& look_again) {
  std::vector<std::string> reports =
      group.all_gather_bytes(report_of(status), "checkpoint: verdict");
  const auto is_damaged = [](const std::string& report) { return report.starts_with(kDamaged); };
  std::string unseen;
  if (!is_damaged(reports[0]) && std::any_of(reports.begin(), reports.end(), is_damaged)) {
    reports[0] = group
                     .all_gather_bytes(group.rank() == 0 ? report_of(look_again()) : std::string(),
                                       "checkpoint: second look")
                     .front();
    if (reports[0].empty()) {
      unseen =
          "\nrank 0 has read all of the step and finds no damage, so that it is not passed "
          "over; look at the host of the rank that does, or name an older step by "
          "LoadOptions::step";
    }
  }
  Verdict verdict;
  bool is_other = false;
  std::vector<std::string> problems;
  for (const std::string& report : reports) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(report, absl::MaxSplits('\n', 1));
    verdict.is_damaged = verdict.is_damaged || parts.first == "damaged";
    is_other = is_other || parts.first == "other";
    problems.push_back(parts.second);
  }
  verdict.is_damaged = verdict.is_damaged && !is_other && unseen.empty();
  verdict.problem = refusal_text(problems, "checkpoint") + unseen;
  return verdict;
}

/// Returns true if a step has only a model's values, like the steps that `tessera-checkpoint
/// import` writes.
bool is_model_alone(const Manifest& manifest) {
  return std::all_of(manifest.entries.begin(), manifest.entries.end(),
                     [](const auto& entry) { return entry.first.starts_with("model."); });
}

/// Throws a c10::Error with `text`, which is equal on all ranks.
[[noreturn]] void refuse(const std::string& text) { throw ErrorOnAllRanks(text); }

class Load {
 public:
  Load(Engine& engine, FileSystem& files, std::string directory, const LoadOptions& options,
       const FindProblem& find)
      : engine_(engine),
        group_(engine.group()),
        files_(files),
        directory_(std::move(directory)),
        options_(options),
        find_problem_(find) {}

  std::optional<LoadedCheckpoint> run() {
    require_equal(group_,
                  {options_.step.has_value() ? absl::StrCat("step ", *options_.step) : "any step"},
                  "load_checkpoint");
    std::vector<int64_t> steps = candidates();
    std::vector<std::string> rejected;
    // If no listed step could be loaded, lists the steps again: a job that saves in the directory
    // may have deleted these steps and saved newer ones.
    for (int attempts = 0; attempts < kAttempts; ++attempts) {
      std::optional<LoadedCheckpoint> loaded = first_of(steps, rejected);
      if (loaded.has_value() || steps.empty()) return loaded;
      std::vector<int64_t> now = candidates();
      if (now == steps) break;
      steps = std::move(now);
    }
    refuse(absl::StrCat("[checkpoint] '", directory_,
                        "': got no step that is whole, expected one; nothing was changed:\n  ",
                        absl::StrJoin(rejected, "\n  ")));
  }

 private:
  static constexpr int kAttempts = 5;

  std::optional<LoadedCheckpoint> first_of(const std::vector<int64_t>& steps,
                                           std::vector<std::string>& rejected) {
    for (const int64_t step : steps) {
      std::optional<LoadedCheckpoint> loaded = attempt(step, rejected);
      if (loaded.has_value()) {
        loaded->rejected = std::move(rejected);
        return loaded;
      }
      if (group_.rank() == 0) std::fprintf(stderr, "%s\n", rejected.back().c_str());
      if (!files_.can_rename() && was_deleted(step)) break;  // run() then lists the steps again
    }
    return std::nullopt;
  }

  /// Returns true if rank 0 sees that step `step`, which was listed before, has been deleted.
  /// Without locks, files may be deleted while they are read.
  bool was_deleted(int64_t step) {
    std::string gone;
    if (group_.rank() == 0) {
      const auto steps = list_steps(files_, directory_);
      if (steps.ok() && std::find(steps->begin(), steps->end(), step) == steps->end())
        gone = "gone";
    }
    return !group_.all_gather_bytes(gone, "checkpoint: deleted").front().empty();
  }

  /// Returns the steps to try, as rank 0 sees them, the newest first.
  std::vector<int64_t> candidates() {
    std::vector<int64_t> steps;
    std::string problem;
    if (options_.step.has_value() && *options_.step < 0) {
      problem = absl::StrCat("step: got ", *options_.step,
                             ", expected 0 or more; leave it out for the newest");
    } else if (options_.step.has_value()) {
      steps = {*options_.step};
    } else {
      absl::StatusOr<std::vector<int64_t>> found = list_steps(files_, directory_);
      if (found.ok()) {
        steps.assign(found->rbegin(), found->rend());
      } else if (!absl::IsNotFound(found.status())) {
        problem = absl::StrCat(found.status().message());
      }
    }
    refuse_on_all_ranks(group_, problem, "checkpoint");
    const std::vector<std::string> lists =
        group_.all_gather_bytes(absl::StrJoin(steps, ","), "checkpoint: steps");
    require_steps_on_all(lists);
    steps.clear();
    for (const absl::string_view number : absl::StrSplit(lists.front(), ',', absl::SkipEmpty())) {
      int64_t step = 0;
      TORCH_INTERNAL_ASSERT(absl::SimpleAtoi(number, &step));
      steps.push_back(step);
    }
    return steps;
  }

  /// Opens step `step`. An absent file may be one that this host does not see yet (NFS), so it
  /// counts as damage only if it is still absent a second later.
  absl::StatusOr<std::unique_ptr<StepReader>> open(int64_t step) {
    const std::string path = join_path(directory_, step_name(step));
    absl::StatusOr<std::unique_ptr<StepReader>> reader = StepReader::open(files_, path);
    if (errno_of(reader.status()) != ENOENT) return reader;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return StepReader::open(files_, path);
  }

  void say_strays(const StepReader& reader) const {
    const std::string strays = reader.strays_text();
    if (strays.empty() || group_.rank() != 0) return;
    std::fprintf(stderr,
                 "[checkpoint] '%s' also has %s, which its manifest does not name; ignored\n",
                 reader.path().c_str(), strays.c_str());
  }

  /// Loads step `step`. If the step is damaged, adds a line to `rejected` and returns nothing.
  std::optional<LoadedCheckpoint> attempt(int64_t step, std::vector<std::string>& rejected) {
    const auto reject = [&](const Verdict& verdict) {
      if (!verdict.is_damaged || options_.step.has_value()) refuse(verdict.problem);
      rejected.push_back(
          absl::StrCat("[checkpoint] ", step_name(step), " is not used: ", verdict.problem));
      return std::nullopt;
    };
    absl::StatusOr<std::unique_ptr<StepReader>> reader = open(step);
    const auto verify = [&] { return reader.ok() ? (*reader)->verify_all() : reader.status(); };
    require_seen_by_all(step, reader.status());
    const Verdict opened = verdict_of(group_, reader.status(), verify);
    if (!opened.problem.empty()) return reject(opened);
    say_strays(**reader);

    require_one_save((*reader)->manifest());
    StepSource source(**reader);
    LoadedCheckpoint loaded;
    absl::Status status = read_extras(**reader, loaded);
    const Verdict extras = verdict_of(group_, status, verify);
    if (!extras.problem.empty()) return reject(extras);
    refuse_on_all_ranks(group_, find_problem_(loaded), "checkpoint");
    try {
      if (loaded.is_model_alone) {
        ModelSource model(engine_.parameters(), dtypes_of(engine_), source,
                          ModelSource::Missing::kIsAnError);
        engine_.read_state(model, options_.partial);
      } else {
        engine_.read_state(source, options_.partial);
      }
    } catch (const ErrorOnAllRanks&) {
      // All ranks get here, and nothing has been changed. Either a file is damaged, or the state in
      // the files does not fit the engine.
      const Verdict verdict = verdict_of(group_, source.status(), verify);
      if (!verdict.problem.empty()) return reject(verdict);
      throw;
    }
    return loaded;
  }

  /// Throws if only some ranks see steps, because a rank without steps would start over, and the
  /// run would overwrite the steps that the other ranks see.
  void require_steps_on_all(const std::vector<std::string>& lists) const {
    const auto is_empty = [](const std::string& list) { return list.empty(); };
    const auto without = std::find_if(lists.begin(), lists.end(), is_empty);
    const auto with = std::find_if_not(lists.begin(), lists.end(), is_empty);
    if (with == lists.end() || without == lists.end()) return;
    refuse(absl::StrCat("[checkpoint] '", directory_, "': got steps on rank ", with - lists.begin(),
                        " and none on rank ", without - lists.begin(),
                        ", expected one directory that all ranks share; nothing was changed"));
  }

  /// Throws the error for a requested step that no rank has.
  void refuse_absent(int64_t step) {
    const auto there = list_steps(files_, directory_);
    if (!there.ok() || there->empty()) {
      refuse(absl::StrCat("[checkpoint] '", directory_, "': got no step ", step,
                          " and no other, expected the directory of a run; correct its name"));
    }
    refuse(absl::StrCat("[checkpoint] '", directory_, "': got no step ", step, " with a manifest, ",
                        "expected one of ", absl::StrJoin(*there, ", "),
                        "; leave it out for the newest"));
  }

  /// Throws if no rank finds the requested step, or if one rank can use a step that another rank
  /// does not find. If the file system has locks, a rank that can use a step holds one on it, so no
  /// job can have deleted the step: the ranks see different directories, or the other rank's view
  /// is stale.
  void require_seen_by_all(int64_t step, const absl::Status& status) {
    const char* const mine = status.ok() ? "yes" : absl::IsNotFound(status) ? "no" : "cannot tell";
    const std::vector<std::string> seen = group_.all_gather_bytes(mine, "checkpoint: seen");
    const auto with = std::find(seen.begin(), seen.end(), "yes");
    const auto without = std::find(seen.begin(), seen.end(), "no");
    if (options_.step.has_value() &&
        std::count(seen.begin(), seen.end(), "no") == std::ssize(seen)) {
      refuse_absent(step);
    }
    if (with == seen.end() || without == seen.end()) return;
    refuse(absl::StrCat("[checkpoint] '", directory_, "/", step_name(step), "': got it on rank ",
                        with - seen.begin(), " and not on rank ", without - seen.begin(),
                        ", expected one directory that all ranks share; nothing was changed"));
  }

  /// Throws if the ranks' manifests are from different saves, because ranks that see different
  /// directories under one path would load parts of different runs.
  void require_one_save(const Manifest& manifest) const {
    const std::vector<std::string> saves =
        group_.all_gather_bytes(manifest.nonce, "checkpoint: save");
    for (size_t rank = 1; rank < saves.size(); ++rank) {
      if (saves[rank] == saves[0]) continue;
      refuse(absl::StrCat("[checkpoint] '", directory_, "/", step_name(manifest.step),
                          "': got other saves on rank 0 (", saves[0], ") and rank ", rank, " (",
                          saves[rank], "), expected one directory that all ranks share; nothing ",
                          "was changed"));
    }
  }

  absl::Status read_extras(StepReader& reader, LoadedCheckpoint& loaded) const {
    const Manifest& manifest = reader.manifest();
    loaded.step = manifest.step;
    loaded.is_model_alone = is_model_alone(manifest);
    loaded.world = manifest.world;
    loaded.path = reader.path();
    loaded.notes = manifest.options;
    loaded.extras.values = {manifest.extras.begin(), manifest.extras.end()};
    const std::string own = rank_entry(group_.rank(), "");
    for (const auto& [entry, unused] : manifest.entries) {
      const std::string_view extra = name_after(entry, "extra/");
      const std::string_view mine =
          manifest.world == group_.size() ? name_after(entry, own) : std::string_view();
      if (extra.empty() && mine.empty()) continue;
      absl::StatusOr<at::Tensor> values = read_tensor(reader, entry);
      if (!values.ok()) return values.status();
      if (extra.empty()) {
        loaded.extras.rank_tensors[std::string(mine)] = *std::move(values);
      } else {
        loaded.extras.tensors[std::string(extra)] = *std::move(values);
      }
    }
    return absl::OkStatus();
  }

  Engine& engine_;
  ProcessGroup& group_;
  RetryingFileSystem files_;
  const std::string directory_;
  const LoadOptions& options_;
  const FindProblem& find_problem_;
};

}  // namespace

namespace internal {

std::optional<LoadedCheckpoint> load_step(Engine& engine, FileSystem& files,
                                          const std::string& directory, const LoadOptions& options,
                                          const FindProblem& find_problem) {
  return Load(engine, files, directory, options, find_problem).run();
}

}  // namespace internal

std::optional<LoadedCheckpoint> load_checkpoint(Engine& engine, const std::string& directory,
                                                const LoadOptions& options) {
  engine.begin_call("loading a checkpoint");
  const std::shared_ptr<FileSystem> files =
      agreed_files(engine.group(), options.files, /*group_access=*/false);
  return load_step(engine, *files, directory, options, [](const LoadedCheckpoint&) { return ""; });
}

}  // namespace tessera
