#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/engine/checkpoint_names.h"
#include "tessera/checkpoint/engine/shard_sink.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/agreement/text_exchange.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

namespace {

std::string text_of_problem(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

/// The tensors that this rank saves beside the state.
std::map<std::string, at::Tensor> tensors_of(const CheckpointExtras& extras, int rank) {
  std::map<std::string, at::Tensor> tensors;
  if (rank == 0) {
    for (const auto& [name, tensor] : extras.tensors) tensors[extra_entry(name)] = tensor;
  }
  for (const auto& [name, tensor] : extras.rank_tensors) tensors[rank_entry(rank, name)] = tensor;
  return tensors;
}

/// One save. What it begins and does not commit is removed by its destructor, on rank 0.
class Save {
 public:
  Save(Engine& engine, std::string directory, const SaveOptions& options)
      : engine_(engine),
        group_(engine.group()),
        directory_(std::move(directory)),
        options_(options),
        step_(engine.steps()) {}
  ~Save() {
    if (!is_begun_) return;
    // What cannot be removed now is removed by the next save.
    (void)abandon_step(files_, directory_, step_, nonce_);
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  std::string run() {
    begin();
    commit(write());
    return join_path(directory_, step_name(step_));
  }

 private:
  bool is_first() const { return group_.rank() == 0; }

  /// Rank 0 makes the step's directory; all ranks learn where it is.
  void begin() {
    absl::Status status;
    if (is_first()) {
      nonce_ = draw_nonce();
      status = begin_here();
    }
    refuse_on_all_ranks(group_, text_of_problem(status), "checkpoint");
    nonce_ = exchange_texts(group_, nonce_, "checkpoint: nonce").front();
  }

  absl::Status begin_here() {
    auto run = RunDirectory::open(files_, directory_, holder_of_this_process());
    if (!run.ok()) return run.status();
    run_ = *std::move(run);
    auto path = begin_step(files_, directory_, step_, nonce_, /*bytes=*/0);
    if (absl::IsAlreadyExists(path.status()) && is_damaged(step_)) {
      if (absl::Status status = set_aside(step_); !status.ok()) return status;
      path = begin_step(files_, directory_, step_, nonce_, /*bytes=*/0);
    }
    if (!path.ok()) return path.status();
    is_begun_ = true;
    return absl::OkStatus();
  }

  /// A run that has passed a damaged step over comes to its number again.
  bool is_damaged(int64_t step) {
    auto reader = StepReader::open(files_, join_path(directory_, step_name(step)));
    return absl::IsDataLoss(reader.ok() ? (*reader)->verify_all() : reader.status());
  }

  absl::Status set_aside(int64_t step) {
    const std::string path = join_path(directory_, step_name(step));
    const std::string aside = absl::StrCat(path, ".damaged-", nonce_);
    if (absl::Status status = files_.rename(path, aside); !status.ok()) return status;
    std::fprintf(stderr, "[checkpoint] '%s' is damaged; it is '%s' now\n", path.c_str(),
                 aside.c_str());
    return files_.sync_directory(directory_);
  }

  /// Every rank writes its file. The summaries by rank, on every rank.
  std::vector<std::string> write() {
    ShardSink sink(files_, join_path(directory_, temporary_step_name(step_, nonce_)),
                   {.nonce = nonce_, .step = step_, .rank = group_.rank(), .world = group_.size()},
                   tensors_of(options_.extras, group_.rank()));
    engine_.write_state(sink);
    absl::StatusOr<std::string> text = absl::UnknownError("");
    if (absl::StatusOr<ShardSummary> summary = sink.finish(); summary.ok()) {
      text = summary->to_text();
    } else {
      text = summary.status();
    }
    refuse_on_all_ranks(group_, text_of_problem(text.status()), "checkpoint");
    return exchange_texts(group_, *text, "checkpoint: summaries");
  }

  void commit(const std::vector<std::string>& summaries) {
    const absl::Status status = is_first() ? commit_here(summaries) : absl::OkStatus();
    refuse_on_all_ranks(group_, text_of_problem(status), "checkpoint");
  }

  absl::Status commit_here(const std::vector<std::string>& texts) {
    std::vector<ShardSummary> summaries;
    for (const std::string& text : texts) {
      absl::StatusOr<ShardSummary> summary = ShardSummary::from_text(text);
      if (!summary.ok()) return summary.status();
      summaries.push_back(*std::move(summary));
    }
    const Degrees& degrees = engine_.degrees();
    Manifest head;
    head.nonce = nonce_;
    head.step = step_;
    head.world = group_.size();
    head.degrees = {degrees.parameters, degrees.gradients, degrees.optimizer};
    head.options = options_.notes;
    head.extras = {options_.extras.values.begin(), options_.extras.values.end()};
    absl::StatusOr<Manifest> manifest = make_manifest(std::move(head), std::move(summaries));
    if (!manifest.ok()) return manifest.status();
    is_begun_ = false;  // commit_step() removes what it does not commit
    return commit_step(files_, directory_, *manifest);
  }

  PosixFileSystem files_;
  Engine& engine_;
  ProcessGroup& group_;
  const std::string directory_;
  const SaveOptions& options_;
  const int64_t step_;
  std::string nonce_;
  std::unique_ptr<RunDirectory> run_;  // rank 0's, holds the lock
  bool is_begun_ = false;
};

}  // namespace

std::string save_checkpoint(Engine& engine, const std::string& directory,
                            const SaveOptions& options) {
  engine.wait();  // under asynchronous steps, for the number of the step
  return Save(engine, directory, options).run();
}

}  // namespace tessera
