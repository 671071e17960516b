#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/comm/meeting/hello.h"
#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/place.h"

namespace tessera::internal {

/// Rank 0's side of a meeting. It listens, admits processes that prove that they belong to the job
/// (they are then called members), and exchanges messages with them. Any process may connect and
/// send anything: a connection that does not prove within seconds that it belongs to the job is
/// closed. At most kMaxUnproven connections without a proof are open; further ones wait to be
/// accepted. Connections that fail to prove themselves are counted, and `warn` is called for the
/// first of them; they never end the job. Only one thread may use the server at a time.
class Server {
 public:
  static constexpr size_t kMaxUnproven = 128;
  static constexpr size_t kMaxMembers = 16384;
  static constexpr auto kTimeToProve = std::chrono::seconds(5);

  /// A member's number in this server.
  using Member = int64_t;
  /// What has happened to a member: it has sent `message` or, if that is nullopt, has disconnected.
  /// The first message of each member is its proof (kMember).
  struct Event {
    Member member;
    std::optional<Message> message;
  };

  /// Local. `self`: the description of this process that every member gets. `warn` is called with
  /// texts for the user.
  Server(std::unique_ptr<Listener> listener, Credentials credentials, Hello self, Warn warn);
  /// Calls finish().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Local. Serves connections for at most `patience`. Returns the members' events, often none.
  std::vector<Event> serve(std::chrono::milliseconds patience);

  /// Local, does not block: bytes that the member does not take immediately are sent in serve().
  void send(Member member, const Message& message);
  void send_to_all(const Message& message);

  /// Local. From now on no process is admitted, and the place is free. Members are served as
  /// before.
  void stop_listening();

  /// Local. Waits up to a second for the members to disconnect, because they may have a message to
  /// read. Meanwhile calls `answer` with each event that still arrives from them. Then closes the
  /// remaining connections.
  void finish(const std::function<void(const Event&)>& answer);

  /// Returns how many connections were closed without a proof that they belong to the job.
  int64_t rejected() const { return rejected_; }

 private:
  struct Session;

  void poll_once(std::chrono::milliseconds patience);
  void accept_all();
  bool has_room() const;
  void receive(Session& session);
  void understand(Session& session, Message message);
  void prove(Session& session, const Message& message);
  void send(Session& session, const Message& message);
  void flush(Session& session);
  void lose(Session& session);
  void reject(Session& session);
  void drop(Session& session);
  void sweep();

  std::unique_ptr<Listener> listener_;
  const Credentials credentials_;
  const Hello self_;
  const Warn warn_;
  std::list<Session> sessions_;
  std::vector<Event> events_;
  Member next_member_ = 0;
  bool has_warned_of_limit_ = false;
  int64_t rejected_ = 0;
};

}  // namespace tessera::internal
