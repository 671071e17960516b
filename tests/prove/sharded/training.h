#pragma once

#include <memory>
#include <string>

#include "tessera/options.h"
#include "tessera/process_group.h"
#include "tessera/tests/prove/plain/task.h"
#include "tessera/tests/prove/sharded/control_group.h"
#include "tessera/tests/prove/sharded/misuse.h"

namespace prove {

/// How the ranks of a job train.
struct Training {
  tessera::Options options;
  Control control = Control::kNone;
  Misuse misuse = Misuse::kNone;
  std::string folder;  ///< to write to
};

/// Collective over `world`. Trains `task` on the same rows as the program without Tessera, each
/// rank on its part of them. Rank 0 writes <task>.end (the parameters) and <task>.steps (loss and
/// gradient norm), rank r its parameters to <task>.end<r>; each rank appends to rank<r>.memory what
/// its engine holds and what was predicted, in bytes, a line for each class.
void train(const Task& task, const Training& training,
           const std::shared_ptr<tessera::ProcessGroup>& world);

}  // namespace prove
