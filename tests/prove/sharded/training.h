#pragma once

#include <memory>
#include <string>

#include "tessera/options.h"
#include "tessera/process_group.h"
#include "tessera/tests/prove/plain/task.h"
#include "tessera/tests/prove/sharded/control_group.h"
#include "tessera/tests/prove/sharded/misuse.h"

namespace prove {

/// The training options of a job's ranks.
struct Training {
  tessera::Options options;
  Control control = Control::kNone;
  Misuse misuse = Misuse::kNone;
  std::string folder;  ///< for the output files
};

/// Collective over `world`. Trains `task` on the same rows as the program without Tessera, each
/// rank on its part of them. Rank 0 writes <task>.end (the parameters) and <task>.steps (loss and
/// gradient norm), and rank r its parameters to <task>.end<r>. Each rank appends the bytes that its
/// engine holds and the predicted bytes to rank<r>.memory, one line per class.
void train(const Task& task, const Training& training,
           const std::shared_ptr<tessera::ProcessGroup>& world);

}  // namespace prove
