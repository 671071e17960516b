#include <memory>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/engine/step_save.h"
#include "tessera/engine.h"

namespace tessera {
using namespace internal;

std::string save_checkpoint(Engine& engine, const std::string& directory,
                            const SaveOptions& options) {
  engine.begin_call("save_checkpoint");
  engine.wait();  // with asynchronous steps, steps() is final only after this
  ProcessGroup& group = engine.group();
  const std::shared_ptr<FileSystem> files =
      agreed_files(group, options.files, options.group_access);
  const std::unique_ptr<RunDirectory> run = open_run_directory(*files, group, directory);
  StepSave save(*files, group, run.get(), directory,
                {.step = engine.steps(), .degrees = engine.degrees(), .options = options});
  return save.save([&](StateSink& sink) { engine.write_state(sink); });
}

}  // namespace tessera
