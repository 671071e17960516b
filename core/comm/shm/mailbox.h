#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/collective.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/comm/shm/outbox.h"
#include "tessera/core/sched/lane.h"
#include "tessera/work.h"

namespace tessera::internal::shm {

/// This rank's messages on one group: see Note [Messages]. Receives make progress in every call on
/// it and in Work::wait() and is_completed(), those of more than ProcessGroup::kBufferedBytes also
/// in a thread, because their senders wait for them. Thread-safe; Works may outlive the group.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(Member& member);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Local: returns at once. Throws CommError if the group or the world has failed.
  std::shared_ptr<Work> send(const Collective& message);
  std::shared_ptr<Work> receive(const Collective& message);

  /// The group is gone: what is in flight fails. Does not block; no effect in a child of fork().
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  class MessageWork;
  struct Sent;
  struct Awaited;
  struct Arrived {
    int sender;
    MessageRecord* record;
  };
  /// How far this rank has read a sender's list.
  struct Cursor {
    MessagePage* page = nullptr;
    uint32_t next = 0;
  };

  ChannelSlot& own_slot() { return channel_.slot(rank_); }
  void check_usable(const Collective& message);
  void progress();
  void read(int sender);
  MessagePage* first_page(int sender);
  void arrive(const Arrived& arrived);
  void deliver(Awaited& awaited, const Arrived& arrived);
  void collect();
  void serve();
  bool is_over(MessageWork& work);
  void await(MessageWork& work);
  void sleep(uint32_t seen);
  bool is_excused(int peer) const;
  bool has_peer_left(int peer);
  void check_peers();
  [[noreturn]] void fail_as_left(const MessageWork& work);
  [[noreturn]] void fail_as_lost(int sender, const CallSignature& call, const std::string& tag);
  void report_wait(const MessageWork& work);
  [[noreturn]] void time_out(const MessageWork& work);
  std::string failure();
  void throw_if_failed(const CallSignature& call, const std::string& tag);
  [[noreturn]] void fail(const CallSignature& call, const std::string& tag,
                         const std::string& cause, int culprit = -1);
  [[noreturn]] void throw_error(const CallSignature& call, const std::string& tag,
                                const std::string& cause) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Segment> memory_;  // holds the channel
  Channel& channel_;
  const int rank_;
  const std::string group_;
  const std::chrono::milliseconds time_out_;
  const std::chrono::milliseconds report_after_;

  std::mutex mutex_;
  Outbox outbox_;
  std::list<std::shared_ptr<Sent>> sent_;        // not known to be taken
  std::list<std::shared_ptr<Awaited>> awaited_;  // in the order of the calls
  std::list<Arrived> arrived_;                   // that no receive has asked for yet
  std::map<int, Cursor> cursors_;                // by sender
  bool is_closed_ = false;
  bool is_serving_ = false;
  std::atomic<bool> process_ends_{false};
  std::unique_ptr<Lane> thread_;  // last: it uses the rest
};

}  // namespace tessera::internal::shm
