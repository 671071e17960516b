#include "tessera/bench/micro/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>

#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"
#include "tessera/rendezvous.h"

extern char** environ;

namespace tessera::internal::bench {
namespace {

constexpr const char* kPeer = "--peer";

struct Command {
  Scene scene;
  int64_t laps;
};

/// Binds the calling thread to some cores while this object lives.
class Affinity {
 public:
  explicit Affinity(const cpu_set_t& cores) : before_(now()) { set(cores); }
  ~Affinity() { set(before_); }
  Affinity(const Affinity&) = delete;
  Affinity& operator=(const Affinity&) = delete;

  static cpu_set_t now() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    ::sched_getaffinity(0, sizeof(cores), &cores);
    return cores;
  }

 private:
  static void set(const cpu_set_t& cores) { ::sched_setaffinity(0, sizeof(cores), &cores); }

  const cpu_set_t before_;
};

/// Returns core number `index`, counted from 0, of the cores that this process may use.
cpu_set_t core(int index) {
  const cpu_set_t all = Affinity::now();
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) == 0 || index-- > 0) continue;
    CPU_SET(cpu, &one);
    break;
  }
  return one;
}

cpu_set_t cores_of(int rank, int size) {
  const cpu_set_t all = Affinity::now();
  return size <= CPU_COUNT(&all) ? core(rank) : all;
}

std::shared_ptr<ProcessGroup> meet(int rank, int size, const std::string& store, Waiting waiting) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = size;
  options.store_url = "file://" + store;
  // When a group is made, it decides by the cores available then whether its ranks spin.
  const Affinity cores(waiting == Waiting::kWithoutSpinning ? core(0) : Affinity::now());
  return init_process_group(std::move(options));
}

/// A directory that only this user can read.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "micro_bench.XXXXXX";
    TORCH_CHECK(::mkdtemp(name.data()) != nullptr, "[bench] got no directory ", name,
                ", expected a new one; ", std::strerror(errno));
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Starts this program as a peer with `input` as its standard input.
pid_t start_peer(const std::vector<std::string>& arguments, int input) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.data()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  TORCH_CHECK(error == 0, "[bench] got no process for a rank, expected one; ",
              std::strerror(error));
  return pid;
}

}  // namespace

Ranks::Ranks(int size, Waiting waiting) {
  const TemporaryDirectory directory;
  const std::string store = directory.path() + "/store";
  for (int rank = 1; rank < size; ++rank) {
    int pipe[2];
    TORCH_CHECK(::pipe2(pipe, O_CLOEXEC) == 0, "[bench] got no pipe, expected one; ",
                std::strerror(errno));
    const pid_t pid = start_peer({"micro_bench", kPeer, std::to_string(rank), std::to_string(size),
                                  store, std::to_string(static_cast<int>(waiting))},
                                 pipe[0]);
    ::close(pipe[0]);
    peers_.push_back({pid, pipe[1]});
  }
  group_ = meet(0, size, store, waiting);
}

Ranks::~Ranks() {
  group_.reset();
  for (const Peer& peer : peers_) ::close(peer.pipe);
  for (const Peer& peer : peers_) ::waitpid(peer.pid, nullptr, 0);
}

void Ranks::play(const Scene& scene, benchmark::State& state) {
  const Command command{scene, static_cast<int64_t>(state.max_iterations)};
  for (const Peer& peer : peers_) {
    TORCH_CHECK(::write(peer.pipe, &command, sizeof(command)) == sizeof(command),
                "[bench] got no way to tell process ", peer.pid,
                " what to do, expected a live rank; ", std::strerror(errno));
  }
  const Affinity cores(cores_of(0, size()));
  Laps laps(state);
  bench::play(scene, *group_, laps);
}

Ranks& RankSets::of(int size, Waiting waiting) {
  auto& ranks = rank_sets_[{size, waiting}];
  if (ranks == nullptr) ranks = std::make_unique<Ranks>(size, waiting);
  return *ranks;
}

bool is_peer(int argc, char** argv) { return argc == 6 && std::strcmp(argv[1], kPeer) == 0; }

int live_as_peer(char** argv) {
  const int rank = std::stoi(argv[2]);
  const int size = std::stoi(argv[3]);
  const auto waiting = static_cast<Waiting>(std::stoi(argv[5]));
  try {
    const auto group = meet(rank, size, argv[4], waiting);
    const Affinity cores(cores_of(rank, size));
    Command command;
    while (::read(STDIN_FILENO, &command, sizeof(command)) == sizeof(command)) {
      Laps laps(command.laps);
      play(command.scene, *group, laps);
    }
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << ": " << error_text(error) << '\n';
    return 1;
  }
  return 0;
}

}  // namespace tessera::internal::bench
