#include "tessera/core/comm/meeting/meeting.h"

#include <string>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

// When this rank's own time-out has passed, it waits this much longer for rank 0's report, because
// rank 0 knows which ranks are missing.
constexpr auto kAnswerGrace = std::chrono::milliseconds(500);

}  // namespace

class Meeting::Attendance {
 public:
  Attendance(Connection& connection, Transport& transport, const MeetingOptions& options)
      : connection_(connection), transport_(transport), options_(options) {}

  void run(Deadline end) {
    bool is_late = false;
    while (true) {
      const auto now = Clock::now();
      if (now >= end && is_late) give_up_waiting();
      if (now >= end) {
        is_late = true;
        end = now + kAnswerGrace;
        tell(Message::of(MessageKind::kTimedOut, {absl::StrCat(options_.timeout.count())}));
      }
      if (hear_until(end)) return;
    }
  }

 private:
  /// Waits for a message from rank 0, and acts on it. Returns true if the ranks have met.
  bool hear_until(Deadline deadline) {
    const auto received = connection_.receive(deadline);
    if (received.ok()) return hear(*received);
    if (!absl::IsDeadlineExceeded(received.status())) {
      fail(absl::StrCat(connection_.server().name(), ", where the ranks meet, ",
                        std::string(received.status().message())));
    }
    return false;
  }

  bool hear(const Message& message) {
    if (message.is(MessageKind::kFailure, 1)) throw MeetingFailure{message.fields[0]};
    if (message.is(MessageKind::kGo, 0)) return has_entered_;
    if (message.is(MessageKind::kEnter, 1)) {
      enter(message.fields[0]);
    }
    return false;
  }

  void enter(const std::string& text) {
    const absl::Status entered = transport_.enter(text);
    if (!entered.ok()) {
      // Perhaps this failed because rank 0 has failed or ended: hear_until() then throws that
      // cause.
      hear_until(Clock::now() + kAnswerGrace);
      const std::string cause(entered.message());
      options_.report(-1, cause);
      tell(Message::of(MessageKind::kGaveUp, {cause}));
      throw MeetingFailure{cause};
    }
    has_entered_ = true;
    tell(Message::of(MessageKind::kEntered));
  }

  /// Sends `message` to rank 0. Ignores errors: if rank 0 has gone, receive() reports that, after
  /// the last messages of rank 0.
  void tell(const Message& message) {
    static_cast<void>(connection_.send(message, Clock::now() + kAnswerGrace));
  }

  [[noreturn]] void give_up_waiting() {
    fail(absl::StrCat("timed out after ", options_.timeout.count(), " ms: no answer from ",
                      connection_.server().state()));
  }

  [[noreturn]] void fail(const std::string& cause) {
    options_.report(0, cause);
    throw MeetingFailure{cause};
  }

  Connection& connection_;
  Transport& transport_;
  const MeetingOptions& options_;
  bool has_entered_ = false;
};

void Meeting::attend(Connection& connection, Transport& transport, const MeetingOptions& options,
                     Deadline end) {
  Attendance(connection, transport, options).run(end);
}

}  // namespace tessera::internal
