#include "tessera/bench/micro/scene.h"

#include <c10/util/Exception.h>

#include "tessera/bench/micro/barrier.h"
#include "tessera/bench/micro/collective.h"
#include "tessera/bench/micro/gather.h"
#include "tessera/bench/micro/operators.h"

namespace tessera::internal::bench {

void play(const Scene& scene, ProcessGroup& group, Laps& laps) {
  switch (scene.kind) {
    case Scene::Kind::kCollective:
      play_collective(scene, group, laps);
      break;
    case Scene::Kind::kBarrier:
      play_barrier(group, laps);
      break;
    case Scene::Kind::kGather:
      play_gather(scene, group, laps);
      break;
    case Scene::Kind::kOperators:
      play_operators(scene, group, laps);
      break;
  }
  group.barrier("end of scene");
}

}  // namespace tessera::internal::bench
