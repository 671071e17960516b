#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {

/// Bound on every wait; reached only if something hangs.
inline constexpr std::chrono::seconds kTooLong(60);

/// A descriptor that becomes readable when process `pid` has ended.
inline FileDescriptor watch_process(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

/// Whether every process ends within `limit`. A closed descriptor is one that was gone already.
inline bool all_end(const std::vector<FileDescriptor>& processes, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const FileDescriptor& process : processes) {
    if (!process.is_open()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd end{process.get(), POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) != 1) return false;
  }
  return true;
}

/// How often `part` is in `text`.
inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// The real `tessera-run` as a child of the test, its output in pipes.
class LaunchedJob {
 public:
  /// `arguments` follow the program's name; `environment` changes the test's own (an empty value
  /// takes a variable out). `shell` runs before it in the same process, as in "trap '' HUP".
  explicit LaunchedJob(const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> environment = {},
                       const std::string& shell = "") {
    environment.try_emplace("OMP_NUM_THREADS", "1");
    std::vector<std::string> command = {TESSERA_RUN_PATH};
    if (!shell.empty()) {
      command = {"/bin/sh", "-c", shell + "; exec \"$@\"", "sh", TESSERA_RUN_PATH};
    }
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<std::string> entries;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (environment.count(text.substr(0, text.find('='))) == 0) entries.push_back(text);
    }
    for (const auto& [name, value] : environment) {
      if (!value.empty()) entries.push_back(absl::StrCat(name, "=", value));
    }
    start(command, entries);
  }

  ~LaunchedJob() {
    if (pid_ < 0) return;
    // The watcher ends what is left.
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  const std::string& out() const { return streams_[0].text; }
  const std::string& err() const { return streams_[1].text; }
  void signal(int number) const { kill(pid_, number); }

  /// Reads until `text` has come on stdout or stderr; false if the job closed both or it took too
  /// long.
  bool read_until(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kTooLong;
    while (out().find(text) == std::string::npos && err().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline || !read_some()) return false;
    }
    return true;
  }

  /// As `read_until`, of stderr alone: stdout stays unread, as by a stopped terminal.
  bool read_err_until(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kTooLong;
    while (err().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline || !read_stream(streams_[1], 100))
        return false;
    }
    return true;
  }

  /// Reads what comes within a tenth of a second.
  void read_for_a_moment() { read_some(); }

  /// Closes the test's end of stdout.
  void stop_reading_stdout() { streams_[0].pipe.close(); }

  /// Reads to the end of both streams; false if somebody still holds one after too long.
  bool read_all() {
    const auto deadline = std::chrono::steady_clock::now() + kTooLong;
    while (read_some()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

  /// Reads everything, waits for the end and returns the exit code, 128 + signal for a signal, or
  /// -1 if it hangs.
  int wait() {
    if (!read_all()) return -1;
    std::vector<FileDescriptor> process;
    process.push_back(watch_process(pid_));
    if (!all_end(process, kTooLong)) return -1;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// The numbers that follow "pid " in stdout so far.
  std::vector<pid_t> printed_pids() const {
    std::vector<pid_t> pids;
    for (size_t at = out().find("pid "); at != std::string::npos; at = out().find("pid ", at + 4)) {
      pids.push_back(std::stoi(out().substr(at + 4)));
    }
    return pids;
  }

 private:
  struct Stream {
    FileDescriptor pipe;
    std::string text;
  };

  void start(const std::vector<std::string>& command, const std::vector<std::string>& entries) {
    int in[2], out[2], err[2];
    ASSERT_EQ(pipe2(in, O_CLOEXEC) + pipe2(out, O_CLOEXEC) + pipe2(err, O_CLOEXEC), 0);
    FileDescriptor in_read(in[0]), out_write(out[1]), err_write(err[1]);
    stdin_ = FileDescriptor(in[1]);  // stays open: whoever reads it waits for ever
    streams_[0].pipe = FileDescriptor(out[0]);
    streams_[1].pipe = FileDescriptor(err[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t set;
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&attributes, &set);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes, &set);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    ASSERT_EQ(posix_spawn(&pid_, command[0].c_str(), &actions, &attributes,
                          pointers(command).data(), pointers(entries).data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }

  static std::vector<char*> pointers(const std::vector<std::string>& strings) {
    std::vector<char*> result;
    result.reserve(strings.size() + 1);
    for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  }

  /// False when both streams are at their end.
  bool read_some() {
    pollfd polled[2] = {{streams_[0].pipe.get(), POLLIN, 0}, {streams_[1].pipe.get(), POLLIN, 0}};
    if (polled[0].fd < 0 && polled[1].fd < 0) return false;
    poll(polled, 2, 100);
    for (int i : {0, 1}) {
      if (polled[i].revents != 0) read_stream(streams_[i], 0);
    }
    return true;
  }

  static bool read_stream(Stream& stream, int wait_ms) {
    if (!stream.pipe.is_open()) return false;
    pollfd polled{stream.pipe.get(), POLLIN, 0};
    if (poll(&polled, 1, wait_ms) != 1) return true;
    char bytes[65536];
    const ssize_t count = read(stream.pipe.get(), bytes, sizeof(bytes));
    if (count > 0) {
      stream.text.append(bytes, static_cast<size_t>(count));
    } else {
      stream.pipe.close();
    }
    return true;
  }

  pid_t pid_ = -1;
  FileDescriptor stdin_;
  Stream streams_[2];
};

/// Parent and name of a process; parent -1 if there is none such.
struct ProcessEntry {
  pid_t parent = -1;
  std::string name;
};

inline ProcessEntry look_up_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  std::istringstream rest(text.substr(close + 1));
  char state;
  ProcessEntry entry;
  rest >> state >> entry.parent;
  entry.name = text.substr(open + 1, close - open - 1);
  return entry;
}

/// `root` and all processes below it.
inline std::vector<pid_t> process_tree(pid_t root) {
  std::map<pid_t, std::vector<pid_t>> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    children[look_up_process(pid).parent].push_back(pid);
  }
  std::vector<pid_t> tree = {root};
  for (size_t i = 0; i < tree.size(); ++i) {
    const auto& below = children[tree[i]];
    tree.insert(tree.end(), below.begin(), below.end());
  }
  return tree;
}

}  // namespace tessera::internal
