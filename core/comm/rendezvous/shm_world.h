#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/group/group.h"
#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job: its world on one host, in shared memory. With GPUs, which
/// ranks may share, it stages through that memory; if one rank lacks something for that, all throw
/// the same c10::Error, which names the ranks.
std::shared_ptr<ProcessGroup> make_shm_world(ProcessGroupOptions options,
                                             const Environment& environment);

/// Those ranks of a job that are on this host, where the job has more.
struct HostPart {
  std::vector<int> ranks;       ///< of the job, ascending
  int own = 0;                  ///< which of them this one is
  std::string host;             ///< what messages call it
  std::string name;             ///< of the abstract socket at which the first one listens
  std::string group = "world";  ///< the group's name
};

/// Collective over these ranks: their world, in shared memory, for the threads of a group of
/// several hosts. Where it cannot be made they learn of it in seconds.
std::shared_ptr<Group> make_shm_part(const ProcessGroupOptions& options,
                                     const Environment& environment, HostPart part);

}  // namespace tessera::internal
