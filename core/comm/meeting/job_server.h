#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <thread>

#include "tessera/core/comm/meeting/credentials.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// Answers the members of a job from a JobTable, in a thread of its own. Any process may connect
/// and send anything: a connection that does not prove within seconds that it belongs to the job is
/// closed. The number of such connections is limited; if there are more, the oldest are closed.
/// They are counted and logged once as a warning; they never end the job.
class JobServer {
 public:
  static constexpr size_t kMaxUnproven = 128;
  static constexpr size_t kMaxMembers = 16384;
  static constexpr auto kTimeToProve = std::chrono::seconds(5);
  /// When others wait: a rank proves itself within milliseconds.
  static constexpr auto kTimeToProveInACrowd = std::chrono::seconds(1);

  /// Local. Throws c10::Error if the system has no thread or descriptor left.
  JobServer(std::unique_ptr<Listener> listener, std::shared_ptr<JobTable> table,
            Credentials credentials, HostProcess self);
  /// Waits up to a second for the members to disconnect, because they may have a reply to read.
  /// Does nothing in a child of fork().
  ~JobServer();
  JobServer(const JobServer&) = delete;
  JobServer& operator=(const JobServer&) = delete;

  /// Local. Stops listening: after it returns nobody is admitted, and the next job may use the same
  /// place. Members that are connected are served as before. Blocks for at most one iteration of
  /// the thread.
  void stop_listening();

  /// How many connections were closed because they did not prove to belong to the job.
  int64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }

 private:
  struct Session;

  void run();
  void accept_all();
  bool make_room();
  void receive(Session& session);
  void answer(Session& session, const Message& message);
  void enter(Session& session, const Message& message);
  void send(Session& session, const Message& message, int descriptor = -1);
  void flush(Session& session);
  void lose(Session& session);
  void reject(Session& session);
  void close_listener();
  void sweep();
  int next_wait_ms() const;
  void wake() const;

  const Origin origin_;
  std::unique_ptr<Listener> listener_;
  const std::shared_ptr<JobTable> table_;
  const Credentials credentials_;
  const HostProcess self_;
  FileDescriptor wake_up_;
  std::list<Session> sessions_;
  std::chrono::steady_clock::time_point accepts_from_{};
  std::atomic<int64_t> rejected_{0};
  std::atomic<bool> is_to_stop_listening_{false};
  std::atomic<bool> has_stopped_listening_{false};
  std::atomic<bool> is_to_end_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace tessera::internal
