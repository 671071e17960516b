#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tessera/core/comm/shm/mailbox.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {

/// A message of this rank.
struct Mailbox::Sent {
  MessageRecord* record = nullptr;
  char* copy = nullptr;     // in the arena
  at::Tensor in_place;      // the tensor itself
  bool is_buffered = true;  // the sender need not wait
  bool is_taken = false;
  uint64_t flight = 0;  // its number in the flight recorder
};

/// A receive of this rank.
struct Mailbox::Awaited {
  CallDescriptor call;
  at::Tensor tensor;
  int sender = -1;      // once it is there
  uint64_t flight = 0;  // its number in the flight recorder

  bool fits(const Arrived& arrived) const {
    const int from = call.signature.peer;
    return (from == kAnySource || from == arrived.sender) && call.tag == arrived.record->call.tag;
  }
};

class Mailbox::MessageWork final : public Work {
 public:
  MessageWork(std::shared_ptr<Mailbox> mailbox, const Collective& message,
              std::shared_ptr<Sent> sent, std::shared_ptr<Awaited> awaited)
      : mailbox_(std::move(mailbox)),
        call_(message.signature()),
        tag_(message.tag),
        sent_(std::move(sent)),
        awaited_(std::move(awaited)) {}

  bool is_completed() override {
    if (!mailbox_->world_->origin().is_here()) return true;  // for wait() throws
    const std::lock_guard<std::mutex> lock(mailbox_->mutex_);
    if (is_done() || mailbox_->is_closed_ || !mailbox_->failure().empty()) return true;
    try {
      mailbox_->progress();
    } catch (const CommError&) {  // wait() throws it
      return true;
    }
    return is_done();
  }

  void wait() override { mailbox_->await(*this); }
  int source() const override { return awaited_ == nullptr ? -1 : awaited_->sender; }

  const CallSignature& call() const { return call_; }
  const std::string& tag() const { return tag_; }
  /// Under the mailbox's lock.
  bool is_done() const {
    return sent_ != nullptr ? sent_->is_buffered || sent_->is_taken : awaited_->sender >= 0;
  }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
  const CallSignature call_;
  const std::string tag_;
  const std::shared_ptr<Sent> sent_;        // of a send
  const std::shared_ptr<Awaited> awaited_;  // of a receive
};

}  // namespace tessera::internal::shm
