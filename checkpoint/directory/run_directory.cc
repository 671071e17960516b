#include "tessera/checkpoint/directory/run_directory.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

constexpr std::string_view kProbe = "probe-";

absl::Status make_directory(FileSystem& files, const std::string& path) {
  absl::Status status = files.make_directory(path);
  if (absl::IsNotFound(status)) {
    return absl::NotFoundError(absl::StrCat(status.message(), "; make '", parent_path(path),
                                            "' first, or name another directory"));
  }
  return status.ok() ? files.sync_directory(parent_path(path)) : status;
}

/// Returns this process's start time as " (started 2026-11-28 14:03:22 UTC)", or "" if /proc does
/// not have it. A pid alone would not identify the process, because pids are reused.
std::string start_text() {
  const auto status = process_status(::getpid());
  const long ticks_per_second = ::sysconf(_SC_CLK_TCK);
  timespec since_boot{};
  if (!status.has_value() || ticks_per_second <= 0 ||
      ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) {
    return "";
  }
  const std::time_t start =
      std::time(nullptr) -
      (since_boot.tv_sec - static_cast<std::time_t>(status->start_time) / ticks_per_second);
  std::tm parts{};
  char text[32];
  if (::gmtime_r(&start, &parts) == nullptr ||
      std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
    return "";
  }
  return absl::StrCat(" (started ", text, ")");
}

absl::Status with_remedy(const absl::Status& status, std::string_view remedy) {
  return {status.code(), absl::StrCat(status.message(), std::string(remedy))};
}

}  // namespace

RunDirectory::RunDirectory(FileSystem& files, std::string path, std::unique_ptr<FileLock> lock)
    : files_(files), path_(std::move(path)), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::open(FileSystem& files,
                                                                 const std::string& path,
                                                                 const std::string& holder) {
  const auto entry = files.entry(path);
  absl::Status status = entry.status();
  if (absl::IsNotFound(status)) status = make_directory(files, path);
  if (!status.ok()) return status;
  if (entry.ok() && entry->kind == FileEntry::Kind::kFile) {
    return absl::FailedPreconditionError(
        absl::StrCat("[checkpoint] '", path,
                     "': got a file, expected a directory; name another one, or move it away"));
  }
  auto lock = files.lock(join_path(path, kLockName), holder);
  if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
  static std::atomic_flag is_said;
  if (!lock.ok() && !is_said.test_and_set()) {
    std::fprintf(
        stderr,
        "%s, so that no second job is kept out of '%s': see to it that one at a time saves "
        "there. Steps that other jobs read are not protected against deletion\n",
        std::string(lock.status().message()).c_str(), path.c_str());
  }
  std::unique_ptr<RunDirectory> run(
      new RunDirectory(files, path, lock.ok() ? *std::move(lock) : nullptr));
  status = run->probe();
  if (!status.ok()) return status;
  // On NFS, for example, this fails if a process still has a removed file open.
  if (status = run->remove_leftovers(); !status.ok()) {
    std::fprintf(stderr, "%s; what an earlier job has left stays for now\n",
                 std::string(status.message()).c_str());
  }
  return run;
}

absl::Status RunDirectory::probe() {
  const std::string path = join_path(path_, absl::StrCat(std::string(kProbe), draw_nonce()));
  const auto file = files_.create(path);
  if (!file.ok()) return with_remedy(file.status(), "; checkpoints cannot be saved there");
  absl::Status status = (*file)->write_all(holder_of_this_process());
  if (status.ok()) status = (*file)->sync();
  if (status.ok()) status = (*file)->close();
  const absl::Status removal = files_.remove_file(path);
  if (status.ok()) status = removal;
  if (status.ok()) status = files_.sync_directory(path_);
  return status.ok() ? status : with_remedy(status, "; checkpoints cannot be saved there");
}

absl::StatusOr<std::string> RunDirectory::leave_mark() {
  const std::string name = absl::StrCat(std::string(kProbe), draw_nonce());
  const auto file = files_.create(join_path(path_, name));
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->close(); !status.ok()) return status;
  return name;
}

absl::Status RunDirectory::remove_leftovers() {
  const auto names = files_.list(path_);
  if (!names.ok()) return names.status();
  absl::Status status;
  for (const std::string& name : *names) {
    const std::string path = join_path(path_, name);
    const bool is_probe = name.starts_with(kProbe) && is_nonce(name.substr(kProbe.size()));
    const auto mark = step_mark_of(name);
    absl::StatusOr<bool> is_kept = !is_probe && mark != kTemporary && mark != kTrash;
    if (*is_kept && mark.has_value()) is_kept = is_step(files_, path);
    if (!is_kept.ok() || !*is_kept) {
      status.Update(is_kept.ok() ? remove_tree(files_, path) : is_kept.status());
    }
  }
  return status;
}

absl::Status RunDirectory::set_aside(int64_t step, std::string_view why) {
  const std::string path = join_path(path_, step_name(step));
  const std::string aside = join_path(path_, marked_step_name(step, why, draw_nonce()));
  if (absl::Status status = move_step(files_, path, aside); !status.ok()) return status;
  verified_.erase(step);
  std::fprintf(stderr, "[checkpoint] '%s' is %s; it is '%s' now\n", path.c_str(),
               std::string(why).c_str(), aside.c_str());
  return files_.sync_directory(path_);
}

absl::Status RunDirectory::set_aside_after(int64_t last, std::string_view why) {
  const auto steps = list_steps(files_, path_);
  if (!steps.ok()) return steps.status();
  for (auto step = steps->rbegin(); step != steps->rend() && *step > last; ++step) {
    if (absl::Status status = set_aside(*step, why); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RunDirectory::find_whole_step_but(const std::vector<int64_t>& doomed) {
  std::vector<std::string> reasons;
  for (auto step = verified_.rbegin(); step != verified_.rend(); ++step) {
    if (std::binary_search(doomed.begin(), doomed.end(), *step)) continue;
    const auto reader = StepReader::open(files_, join_path(path_, step_name(*step)));
    if (reader.ok()) return absl::OkStatus();
    reasons.emplace_back(reader.status().message());
  }
  return absl::DataLossError(absl::StrCat(
      "[checkpoint] '", path_, "': no step is deleted, because none of those to keep is known to ",
      "be whole; verify them", reasons.empty() ? "" : ": ", absl::StrJoin(reasons, "\n")));
}

absl::StatusOr<bool> RunDirectory::delete_step(int64_t step) {
  const std::string path = join_path(path_, step_name(step));
  std::string strays;
  if (const auto reader = StepReader::open(files_, path); reader.ok()) {
    strays = (*reader)->strays_text();
  }
  const auto lock = files_.lock_content(join_path(path, kManifestName), /*alone=*/true);
  if (is_held(lock.status())) return false;
  const std::string trash = marked_path(files_, path_, step, kTrash, draw_nonce());
  if (absl::Status status = move_step(files_, path, trash); !status.ok()) return status;
  verified_.erase(step);
  if (!strays.empty()) {
    std::fprintf(stderr, "[checkpoint] '%s' is deleted with what its manifest does not name: %s\n",
                 path.c_str(), strays.c_str());
  }
  // The rename must be durable before the first file is removed.
  absl::Status status = files_.sync_directory(path_);
  if (status.ok()) status = remove_step(files_, trash);
  if (!status.ok()) return status;
  return true;
}

RunDirectory::Retained RunDirectory::retain(const Retention& retention) {
  Retained retained;
  const auto committed = list_steps(files_, path_);
  if (!committed.ok()) {
    retained.status = committed.status();
    return retained;
  }
  const std::vector<int64_t> doomed = steps_to_delete(*committed, retention);
  if (doomed.empty()) return retained;
  retained.status = find_whole_step_but(doomed);
  if (!retained.status.ok()) return retained;
  for (const int64_t step : doomed) {
    const auto done = delete_step(step);
    if (!done.ok()) {
      retained.status.Update(done.status());
    } else if (*done) {
      retained.deleted.push_back(step);
    }
  }
  return retained;
}

std::string holder_of_this_process() {
  return absl::StrCat("pid ", ::getpid(), start_text(), " on host ", machine_name());
}

}  // namespace tessera::internal
