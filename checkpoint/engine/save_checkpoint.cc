#include <string>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/engine/step_save.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

std::string save_checkpoint(Engine& engine, const std::string& directory,
                            const SaveOptions& options) {
  engine.begin_call("save_checkpoint");
  engine.wait();  // under asynchronous steps, for the number of the step
  ProcessGroup& group = engine.group();
  require_equal(group, {absl::StrCat("group_access ", options.group_access)}, "checkpoint");
  PosixFileSystem files({.group_access = options.group_access});
  const std::unique_ptr<RunDirectory> run = open_run_directory(files, group, directory);
  StepSave save(files, group, run.get(), directory,
                {.step = engine.steps(), .degrees = engine.degrees(), .options = options});
  return save.save([&](StateSink& sink) { engine.write_state(sink); });
}

}  // namespace tessera
