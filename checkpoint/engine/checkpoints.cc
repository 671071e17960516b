#include "tessera/checkpoints.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/engine/background_thread.h"
#include "tessera/checkpoint/engine/shard_sink.h"
#include "tessera/checkpoint/engine/staged_state.h"
#include "tessera/checkpoint/engine/step_load.h"
#include "tessera/checkpoint/engine/step_save.h"
#include "tessera/checkpoint/engine/tracked.h"
#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/format/utf8.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/engine.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

// Note [Saving in the background]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every rank copies its part of the state at the same step, and a thread on each rank writes the
// copy. The threads agree over a group of their own (StepSave), so that training ranks never wait
// for them. If a save fails, it fails on all ranks, but their threads see the error at different
// times. So a rank whose thread has failed reports that in the exchange of after_step(); then all
// ranks wait for their threads and throw at the same step.
class Checkpoints::Run {
 public:
  Run(Engine& engine, const std::string& directory, CheckpointsOptions options);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  std::optional<LoadedCheckpoint> load(const LoadOptions& options);
  void start_over();
  bool after_step(bool stop);
  void save();
  void finish();
  int64_t durable_step() const { return durable_; }
  const Origin& origin() const { return origin_; }

  TrackedThings things;

 private:
  enum Flag : int64_t { kNone = 0, kStop = 1, kFailed = 2 };

  int64_t exchange(int64_t flags);
  void require_own_steps();
  void stage();
  void begin_save();
  void report();
  void write(const std::function<void(StateSink&)>& write_state);
  void write_in_background();
  void delete_old_steps();
  bool is_first() const { return control_->rank() == 0; }
  void require_own_process(const char* call) const {
    TORCH_CHECK(origin_.is_here(), "[checkpoint] ", call, ": ", origin_.fork_error("a rank"));
  }

  const Origin origin_;
  Engine& engine_;
  const std::string directory_;
  const CheckpointsOptions options_;
  const std::shared_ptr<FileSystem> files_;
  const std::unique_ptr<RunDirectory> directory_lock_;  // null except on rank 0
  const std::unique_ptr<BackgroundThread> thread_;      // null: saves block
  const std::shared_ptr<ProcessGroup> control_;         // used by the thread that trains
  // Used by saves, whichever thread they run on.
  const std::shared_ptr<ProcessGroup> background_;
  HostAllGather flags_;
  const int64_t calls_per_exchange_;
  int64_t calls_ = 0;  // number of after_step() calls
  bool wants_stop_ = false;
  // Set by load(), start_over() and a first save: save() then need not check whose steps the
  // directory has.
  bool knows_past_ = false;
  // True from the start of a save on thread_ until finish() has waited for it.
  bool is_writing_ = false;
  std::optional<int64_t> rewound_to_;  // StepSave::Contents::rewound_to for the next save
  int64_t saved_ = -1;    // the last step that was loaded or whose save began; -1: none
  int64_t begun_at_ = 0;  // the step at which this run of the program began
  StagedState staged_;
  StepSave::Contents contents_;  // of the save that is under way
  // That save's error, if any; the training thread reads it after thread_->wait().
  std::exception_ptr error_;
  std::atomic<bool> has_failed_ = false;
  std::atomic<int64_t> durable_ = -1;
};

namespace {

/// Makes another process group of `group`'s ranks. Its name has `purpose` and a new nonce, so this
/// may be called any number of times.
std::shared_ptr<ProcessGroup> group_for(ProcessGroup& group, const std::string& purpose) {
  const std::string name = group.all_gather_bytes(draw_nonce(), "checkpoints: name").front();
  return duplicate(group, absl::StrCat("checkpoints ", name, ": ", purpose));
}

/// Lists the entries of the engine's state and of `notes` that cannot be saved because of their
/// name or dtype, one line each; "" if there are none. Collective; throws like
/// Engine::write_state().
std::string unsavable(Engine& engine, const std::map<std::string, std::string>& notes) {
  std::vector<std::string> lines;
  for (const StateOutline& entry : engine.state_entries()) {
    std::string wrong = name_problem(entry.name);
    if (wrong.empty()) wrong = form_of(entry.form).problem();
    if (wrong.empty()) continue;
    lines.push_back(absl::StrCat("entry '", printable(entry.name), "' cannot be saved: ", wrong,
                                 "; rename or convert it, or, if it is a buffer, name it in "
                                 "Options::ignores_buffers"));
  }
  for (const auto& [name, text] : notes) {
    std::string wrong = name_problem(name);
    if (wrong.empty()) wrong = utf8_problem(text);
    if (wrong.empty()) continue;
    lines.push_back(absl::StrCat("note '", printable(name), "' cannot be saved: ", wrong));
  }
  return absl::StrJoin(lines, "\n");
}

/// Checks the arguments on all ranks and returns the path of the directory. If the directory is in
/// this machine's file system, the returned path is absolute, because a program may change its
/// working directory. Call this before any group is made, because a group that is destroyed by an
/// exception poisons the world.
std::string checked(const std::string& directory, const CheckpointsOptions& options,
                    Engine& engine) {
  ProcessGroup& group = engine.group();
  std::string problem;
  if (options.every < 0 || options.keep < 0 || options.keep_every < 0) {
    problem = absl::StrCat("got every ", options.every, ", keep ", options.keep, ", keep_every ",
                           options.keep_every, ", expected 0 or more");
  }
  refuse_on_all_ranks(group, problem, "checkpoint");
  require_equal(
      group,
      {absl::StrCat("directory ", directory), absl::StrCat("every ", options.every),
       absl::StrCat("keep ", options.keep), absl::StrCat("keep_every ", options.keep_every),
       absl::StrCat("asynchronous ", options.asynchronous),
       absl::StrCat("stop_on_error ", options.stop_on_error)},
      "checkpoint");
  refuse_on_all_ranks(group, unsavable(engine, options.notes), "checkpoint");
  if (directory.empty() || options.files != nullptr) return directory;
  return std::filesystem::absolute(directory).string();
}

/// Returns the text of the exception that `body` throws; "" if none. Rethrows CommError.
std::string problem_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (...) {
    return present_error_text();
  }
  return "";
}

}  // namespace

Checkpoints::Run::Run(Engine& engine, const std::string& directory, CheckpointsOptions options)
    : engine_(engine),
      directory_(checked(directory, options, engine)),
      options_(std::move(options)),
      files_(agreed_files(engine.group(), options_.files, options_.group_access)),
      directory_lock_(open_run_directory(*files_, engine.group(), directory_)),
      thread_(options_.asynchronous ? BackgroundThread::on_all_ranks(engine.group()) : nullptr),
      control_(group_for(engine.group(), "control")),
      background_(group_for(engine.group(), "background")),
      flags_(*control_, /*words=*/1),
      calls_per_exchange_(control_->can().has_host_channel ? 16 : 1),
      staged_(engine.memory()) {
  engine_.wait();
  begun_at_ = engine_.steps();
}

Checkpoints::Run::~Run() {
  if (!is_writing_) return;
  thread_->wait();
  if (error_ == nullptr) return;
  const std::string text = thrown_by([this] { std::rethrow_exception(error_); });
  std::fprintf(stderr, "%s\n", text.c_str());
}

std::optional<LoadedCheckpoint> Checkpoints::Run::load(const LoadOptions& options) {
  finish();
  engine_.begin_call("loading a checkpoint");
  refuse_on_all_ranks(engine_.group(),
                      options.files != nullptr
                          ? "load: got files, expected those of Checkpoints; leave "
                            "LoadOptions::files out"
                          : "",
                      "checkpoint");
  std::optional<LoadedCheckpoint> loaded =
      load_step(engine_, *files_, directory_, options, [&](const LoadedCheckpoint& found) {
        return found.is_model_alone ? "" : things.problem_of(found.extras);
      });
  if (!loaded.has_value()) {
    knows_past_ = true;
    rewound_to_.reset();
    return loaded;
  }
  const Tracked::Origin origin{.step = loaded->step,
                               .saved_world = loaded->world,
                               .rank = control_->rank(),
                               .world = control_->size()};
  std::string remarks;
  const std::string problem = problem_of([&] {
    if (!loaded->is_model_alone) remarks = things.load(loaded->extras, origin);
  });
  refuse_on_all_ranks(*control_, problem, "checkpoint");
  if (is_first() && !remarks.empty()) std::fprintf(stderr, "%s\n", remarks.c_str());
  knows_past_ = true;
  saved_ = begun_at_ = loaded->step;
  // Newer steps that are damaged or were skipped on purpose do not belong to the resumed run, so
  // the next save sets them aside.
  const bool goes_back = options.step.has_value() || !loaded->rejected.empty();
  rewound_to_ = goes_back ? std::optional(loaded->step) : std::nullopt;
  return loaded;
}

void Checkpoints::Run::start_over() {
  knows_past_ = true;
  rewound_to_ = -1;
}

/// Refuses to save into a directory with steps if neither load() nor start_over() was called.
void Checkpoints::Run::require_own_steps() {
  if (knows_past_) return;
  std::string problem;
  if (is_first()) {
    const auto steps = list_steps(*files_, directory_);
    // A missing directory is no problem here: the save reports it.
    if (!steps.ok() && !absl::IsNotFound(steps.status())) {
      problem = std::string(steps.status().message());
    } else if (steps.ok() && !steps->empty()) {
      problem = absl::StrCat("'", directory_, "': got steps of a run up to ", steps->back(),
                             ", expected none; go on with them by load(), begin anew by "
                             "start_over(), or save elsewhere");
    }
  }
  refuse_on_all_ranks(*control_, problem, "checkpoint");
  knows_past_ = true;
}

/// Returns the flags of all ranks, or-ed.
int64_t Checkpoints::Run::exchange(int64_t flags) {
  flags_.mine()[0] = flags;
  flags_.exchange("checkpoints");
  int64_t all = 0;
  for (int rank = 0; rank < control_->size(); ++rank) all |= flags_.of(rank)[0];
  return all;
}

bool Checkpoints::Run::after_step(bool stop) {
  require_own_process("after_step");
  engine_.begin_call("Checkpoints::after_step");
  wants_stop_ = wants_stop_ || stop;
  int64_t flags = 0;
  if (++calls_ % calls_per_exchange_ == 0) {
    flags = exchange((wants_stop_ ? kStop : kNone) | (has_failed_ ? kFailed : kNone));
  }
  if ((flags & kFailed) != 0) finish();
  const bool is_last = (flags & kStop) != 0;
  const int64_t step = engine_.steps();
  if (is_last || (options_.every > 0 && step > 0 && step % options_.every == 0)) save();
  if (is_last) finish();
  return is_last;
}

void Checkpoints::Run::save() {
  require_own_process("save");
  engine_.begin_call("Checkpoints::save");
  engine_.wait();  // with asynchronous steps, steps() is final only after this
  if (engine_.steps() == saved_) return;
  require_own_steps();
  finish();
  try {
    begin_save();
  } catch (const c10::Error&) {
    error_ = std::current_exception();
  }
  report();
}

void Checkpoints::Run::begin_save() {
  stage();
  saved_ = contents_.step;
  if (thread_ != nullptr) {
    is_writing_ = true;
    thread_->start([this] { write_in_background(); });
  } else {
    write([this](StateSink& sink) { engine_.write_state(sink); });
  }
}

/// Copies what the save needs: the extras and, if saves run on thread_, this rank's part of the
/// engine's state. Succeeds on all ranks or throws on all.
void Checkpoints::Run::stage() {
  contents_ = {.step = engine_.steps(),
               .degrees = engine_.degrees(),
               .options = {.extras = {}, .notes = options_.notes},
               .rewound_to = rewound_to_};
  things.check_ranks(*control_);
  refuse_on_all_ranks(*control_, problem_of([&] { contents_.options.extras = things.save(); }),
                      "checkpoint");
  if (is_first() && contents_.step > begun_at_) things.say_doubts();
  if (thread_ != nullptr) {
    refuse_on_all_ranks(*control_, problem_of([&] { engine_.write_state(staged_); }), "checkpoint");
  }
  rewound_to_.reset();
}

void Checkpoints::Run::write(const std::function<void(StateSink&)>& write_state) {
  StepSave step(*files_, *background_, directory_lock_.get(), directory_, contents_);
  step.save(write_state);
  durable_ = contents_.step;
  if (is_first() && options_.keep > 0) delete_old_steps();
}

void Checkpoints::Run::write_in_background() {
  try {
    write([this](StateSink& sink) { staged_.replay(sink); });
  } catch (...) {
    error_ = std::current_exception();
    has_failed_ = true;
  }
}

/// Deletes the steps that the options do not keep. If that fails, prints the error and lets the run
/// go on.
void Checkpoints::Run::delete_old_steps() {
  const RunDirectory::Retained retained =
      directory_lock_->retain({.keep_last = options_.keep, .keep_every = options_.keep_every});
  if (retained.status.ok()) return;
  std::fprintf(stderr, "[checkpoint] old steps stay: %s\n",
               std::string(retained.status.message()).c_str());
}

void Checkpoints::Run::finish() {
  require_own_process("finish");
  if (is_writing_) thread_->wait();
  is_writing_ = false;
  report();
}

/// Throws or prints the error of a finished save, as the options say.
void Checkpoints::Run::report() {
  if (is_writing_ || error_ == nullptr) return;
  has_failed_ = false;
  saved_ = -1;  // so that save() does not take this step for a saved one
  rewound_to_ = contents_.rewound_to;
  try {
    std::rethrow_exception(std::exchange(error_, nullptr));
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    if (options_.stop_on_error) throw;
    if (is_first()) std::fprintf(stderr, "%s\n", error_text(error).c_str());
  }
}

Checkpoints::Checkpoints(Engine& engine, const std::string& directory, CheckpointsOptions options)
    : run_(std::make_unique<Run>(engine, directory, std::move(options))) {}
Checkpoints::~Checkpoints() {
  if (!run_->origin().is_here()) never_destroy(std::move(run_));
}

Checkpoints& Checkpoints::add(const std::string& name, std::unique_ptr<Tracked> thing) {
  run_->things.add(name, std::move(thing));
  return *this;
}

std::optional<LoadedCheckpoint> Checkpoints::load(const LoadOptions& options) {
  return run_->load(options);
}
void Checkpoints::start_over() { run_->start_over(); }
bool Checkpoints::after_step(bool stop) { return run_->after_step(stop); }
void Checkpoints::save() { run_->save(); }
void Checkpoints::finish() { run_->finish(); }
int64_t Checkpoints::durable_step() const { return run_->durable_step(); }

void step_forward(torch::optim::LRScheduler& scheduler, Engine& engine, int64_t steps) {
  std::vector<torch::optim::OptimizerParamGroup>& groups = engine.optimizer().param_groups();
  std::vector<double> rates;
  rates.reserve(groups.size());
  for (const auto& group : groups) rates.push_back(group.options().get_lr());
  for (int64_t step = 0; step < steps; ++step) scheduler.step();
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
}

}  // namespace tessera
