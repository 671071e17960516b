#include "tessera/checkpoint/engine/step_save.h"

#include <map>
#include <utility>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/engine/checkpoint_names.h"
#include "tessera/checkpoint/engine/own_file_system.h"
#include "tessera/checkpoint/engine/shard_sink.h"
#include "tessera/checkpoint/engine/tensor_problem.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal {

namespace {

constexpr const char* kWhat = "checkpoint";

/// Returns the tensors that this rank saves beside the state.
std::map<std::string, at::Tensor> tensors_of(const CheckpointExtras& extras, int rank) {
  std::map<std::string, at::Tensor> tensors;
  if (rank == 0) {
    for (const auto& [name, tensor] : extras.tensors) tensors[extra_entry(name)] = tensor;
  }
  for (const auto& [name, tensor] : extras.rank_tensors) tensors[rank_entry(rank, name)] = tensor;
  return tensors;
}

/// Lists the extras that cannot be saved, one line each; "" if there are none.
std::string problem_of_extras(const CheckpointExtras& extras) {
  std::vector<std::string> lines;
  for (const auto* const tensors : {&extras.tensors, &extras.rank_tensors}) {
    for (const auto& [name, tensor] : *tensors) {
      std::string wrong = name_problem(rank_entry(0, name));
      if (wrong.empty()) wrong = tensor_problem(tensor);
      if (wrong.empty()) continue;
      lines.push_back(absl::StrCat("[checkpoint] extra '", printable(name), "': ", wrong));
    }
  }
  return absl::StrJoin(lines, "\n");
}

/// Returns why this rank does not see the mark that rank 0 left in the directory; "" if it does.
std::string problem_of_mark(FileSystem& files, const std::string& directory,
                            const std::string& mark) {
  const auto is_there = exists(files, join_path(directory, mark));
  if (!is_there.ok()) return std::string(is_there.status().message());
  if (*is_there) return "";
  return absl::StrCat("[checkpoint] '", directory,
                      "': got a directory without what rank 0 has just made there, expected one "
                      "that all ranks share; name one on a file system that all hosts have");
}

}  // namespace

std::shared_ptr<FileSystem> agreed_files(ProcessGroup& group, std::shared_ptr<FileSystem> files,
                                         bool group_access) {
  require_equal(group,
                {absl::StrCat("group_access ", group_access),
                 files == nullptr ? "files of this machine" : "files of its own"},
                kWhat);
  TORCH_CHECK(files == nullptr || !group_access,
              "[checkpoint] got files and group_access, expected one of them: a file system of "
              "one's own gives access as it does; leave group_access out");
  if (files != nullptr) return as_called(std::move(files));
  return std::make_shared<PosixFileSystem>(PosixFileOptions{.group_access = group_access});
}

std::unique_ptr<RunDirectory> open_run_directory(FileSystem& files, ProcessGroup& group,
                                                 const std::string& directory) {
  std::unique_ptr<RunDirectory> run;
  absl::StatusOr<std::string> mark = std::string();
  if (group.rank() == 0) {
    auto opened = RunDirectory::open(files, directory, holder_of_this_process());
    if (opened.ok()) run = *std::move(opened);
    mark = run != nullptr ? run->leave_mark() : absl::StatusOr<std::string>(opened.status());
  }
  refuse_on_all_ranks(group, std::string(mark.status().message()), kWhat);
  const std::string name = group.all_gather_bytes(*mark, "checkpoint: mark").front();
  const std::string text = refusal_text(
      group.all_gather_bytes(problem_of_mark(files, directory, name), "checkpoint: seen"), kWhat);
  // Removes the mark, because all ranks have looked for it by now.
  if (run != nullptr) (void)run->remove_leftovers();
  if (!text.empty()) throw ErrorOnAllRanks(text);
  return run;
}

StepSave::StepSave(FileSystem& files, ProcessGroup& group, RunDirectory* run, std::string directory,
                   Contents contents)
    : files_(files),
      group_(group),
      run_(run),
      directory_(std::move(directory)),
      contents_(std::move(contents)) {}

StepSave::~StepSave() {
  if (!is_begun_) return;
  // The next save removes files that cannot be removed now.
  (void)abandon_step(files_, directory_, contents_.step, nonce_);
}

std::string StepSave::save(const std::function<void(StateSink&)>& write) {
  const PhaseReport saving(Phase::kSaving);
  begin();
  const std::vector<std::string> summaries = write_files(write);
  const absl::Status status = run_ != nullptr ? commit_here(summaries) : absl::OkStatus();
  refuse_on_all_ranks(group_, std::string(status.message()), kWhat);
  return join_path(directory_, step_name(contents_.step));
}

/// Makes the step's directory on rank 0 and tells all ranks the nonce, which marked_path() needs.
void StepSave::begin() {
  std::string problem = problem_of_extras(contents_.options.extras);
  if (problem.empty() && run_ != nullptr) {
    nonce_ = draw_nonce();
    problem = std::string(begin_here().message());
  }
  refuse_on_all_ranks(group_, problem, kWhat);
  nonce_ = group_.all_gather_bytes(nonce_, "checkpoint: nonce").front();
}

absl::Status StepSave::begin_here() {
  const int64_t step = contents_.step;
  // Removes leftovers of failed saves. Those that cannot be removed do no harm.
  (void)run_->remove_leftovers();
  if (contents_.rewound_to.has_value()) {
    absl::Status status = run_->set_aside_after(*contents_.rewound_to, "replaced");
    if (!status.ok()) return status;
  }
  auto path = begin_step(files_, directory_, step, nonce_);
  if (absl::IsAlreadyExists(path.status()) && has_damaged_step()) {
    if (absl::Status status = run_->set_aside(step, "damaged"); !status.ok()) return status;
    path = begin_step(files_, directory_, step, nonce_);
  }
  is_begun_ = path.ok();
  return path.status();
}

/// Returns true if the directory has a damaged step with the number of this save. This happens if
/// the run passed over that step when it loaded an older one, and has now reached its number again.
bool StepSave::has_damaged_step() const {
  auto reader = StepReader::open(files_, join_path(directory_, step_name(contents_.step)));
  return is_damage(reader.ok() ? (*reader)->verify_all() : reader.status());
}

/// Every rank writes its file. Returns, on every rank, the summaries of all ranks' files, in rank
/// order.
std::vector<std::string> StepSave::write_files(const std::function<void(StateSink&)>& write) {
  ShardSink sink(
      files_, marked_path(files_, directory_, contents_.step, kTemporary, nonce_),
      {.nonce = nonce_, .step = contents_.step, .rank = group_.rank(), .world = group_.size()},
      tensors_of(contents_.options.extras, group_.rank()));
  write(sink);
  absl::StatusOr<std::string> text = absl::UnknownError("");
  if (absl::StatusOr<ShardSummary> summary = sink.finish(); summary.ok()) {
    text = summary->to_text();
  } else {
    text = summary.status();
  }
  refuse_on_all_ranks(group_, std::string(text.status().message()), kWhat);
  return group_.all_gather_bytes(*text, "checkpoint: summaries");
}

absl::Status StepSave::commit_here(const std::vector<std::string>& texts) {
  std::vector<ShardSummary> summaries;
  for (const std::string& text : texts) {
    absl::StatusOr<ShardSummary> summary = ShardSummary::from_text(text);
    if (!summary.ok()) return summary.status();
    summaries.push_back(*std::move(summary));
  }
  const auto& values = contents_.options.extras.values;
  const Degrees& degrees = contents_.degrees;
  Manifest head;
  head.nonce = nonce_;
  head.step = contents_.step;
  head.world = group_.size();
  head.degrees = {degrees.parameters, degrees.gradients, degrees.optimizer};
  head.options = contents_.options.notes;
  head.extras = {values.begin(), values.end()};
  absl::StatusOr<Manifest> manifest = make_manifest(std::move(head), std::move(summaries));
  if (!manifest.ok()) return manifest.status();
  // The destructor has nothing to remove: a failed commit_step() cleans up itself.
  is_begun_ = false;
  absl::Status status = commit_step(files_, directory_, *manifest);
  if (!status.ok()) return status;
  run_->note_verified(contents_.step);
  report_saved_step(contents_.step);
  return absl::OkStatus();
}

}  // namespace tessera::internal
