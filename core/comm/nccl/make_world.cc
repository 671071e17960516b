#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/nccl/group.h"
#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/time_out.h"

namespace tessera::internal::nccl {

std::shared_ptr<Group> make_world(WorldOptions options) {
  TORCH_CHECK(options.api != nullptr && options.device != nullptr && options.table != nullptr,
              "[comm] nccl world: got no library, device or table, expected all three; see "
              "WorldOptions");
  TORCH_CHECK(options.rank >= 0 && options.rank < options.size, "[comm] nccl world: got rank ",
              options.rank, " of ", options.size, ", expected 0 <= rank < size; correct them");
  TORCH_CHECK(options.timeout.count() > 0 && options.table_poll.count() > 0 &&
                  options.local_poll.count() > 0,
              "[comm] nccl world: got a time of 0 or less, expected more than 0 ms; leave it out");
  for (auto* time : {&options.timeout, &options.table_poll, &options.local_poll}) {
    *time = bounded(*time);
  }
  const std::string unsupported = find_unsupported(*options.api, options.nccl);
  TORCH_CHECK(unsupported.empty(), unsupported);
  std::vector<int> ranks(options.size);
  for (int rank = 0; rank < options.size; ++rank) ranks[rank] = rank;
  auto progress = std::make_shared<Progress>("world", std::move(ranks));
  const int rank = options.rank;
  auto world = World::start(std::move(options));
  world->enter(progress);
  try {
    const auto pending = std::make_shared<Pending>(
        world, progress, rank, NumberedCall::of(Op::kInit), nullptr, std::vector<at::Tensor>());
    world->watch(pending);
    auto reduce = meet(*world, *pending);
    auto gather = split(*world, *pending, *reduce, 0, rank, lane_name("world", "gather"),
                        gather_engine(*world));
    pending->mark_finished();
    return std::make_shared<Group>(world, progress, rank, std::move(gather), std::move(reduce));
  } catch (const std::exception& error) {
    world->propose(absl::StrCat("rank ", rank, " failed at start: ", error.what()));
    world->leave(progress, {}, {});
    throw;
  }
}

}  // namespace tessera::internal::nccl
