#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "tessera/bench/micro/scene.h"
#include "tessera/process_group.h"

namespace tessera::internal::bench {

/// How ranks wait for each other: as the group decides (it spins if there is a core for every
/// rank), or as the group does if there are too few cores.
enum class Waiting : uint8_t { kByCores, kWithoutSpinning };

/// Processes that run scenes together. This process is rank 0; the others run the same program
/// file, read scenes from a pipe and end when it closes. Rank r is bound to core r if there are
/// cores for all ranks.
class Ranks {
 public:
  /// Starts size - 1 processes and makes a group with them. Blocks.
  Ranks(int size, Waiting waiting);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int size() const { return static_cast<int>(peers_.size()) + 1; }

  /// Runs `scene` on all ranks; this rank is timed by `state`.
  void play(const Scene& scene, benchmark::State& state);

 private:
  struct Peer {
    pid_t pid;
    int pipe;  // the end to which this process writes
  };

  std::vector<Peer> peers_;
  std::shared_ptr<ProcessGroup> group_;
};

/// The Ranks of a run, one for each size and way of waiting. They are started when first needed.
class RankSets {
 public:
  Ranks& of(int size, Waiting waiting);

 private:
  std::map<std::pair<int, Waiting>, std::unique_ptr<Ranks>> rank_sets_;
};

/// Returns true if the program was started as a peer.
bool is_peer(int argc, char** argv);
/// Runs scenes as a peer until the pipe closes. Returns the exit code.
int live_as_peer(char** argv);

}  // namespace tessera::internal::bench
