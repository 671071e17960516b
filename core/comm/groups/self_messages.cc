#include "tessera/core/comm/groups/self_messages.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_mismatch.h"

namespace tessera::internal {

/// What the Works share with the group.
struct SelfMessages::Shared {
  int rank;
  Copy copy;
  Done done;
  Fail fail;
  std::mutex mutex;
  std::list<Sent> sent;                         // not received
  std::list<std::shared_ptr<Receive>> waiting;  // not sent

  void deliver(const Sent& message, Receive& receive);
};

class SelfMessages::Receive final : public Work {
 public:
  Receive(std::shared_ptr<Shared> shared, const Collective& message)
      : shared_(std::move(shared)),
        tag_(message.tag),
        signature_(message.signature()),
        output_(message.output) {}

  bool is_completed() override {
    const auto done = find_done();
    return done != nullptr && done->is_completed();
  }

  void wait() override {
    const auto done = find_done();
    if (done == nullptr) {
      shared_->fail(Op::kRecv, tag_,
                    absl::StrCat("waits for a message that rank ", shared_->rank,
                                 " has to send itself first"));
      return;
    }
    done->wait();
  }

  int source() const override { return shared_->rank; }

  const std::string& tag() const { return tag_; }
  const CallSignature& signature() const { return signature_; }

  void take(const at::Tensor& from) {
    shared_->copy(output_, from);
    done_ = shared_->done();
    output_ = at::Tensor();
  }

 private:
  std::shared_ptr<Work> find_done() {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return done_;
  }

  const std::shared_ptr<Shared> shared_;
  const std::string tag_;
  const CallSignature signature_;
  at::Tensor output_;
  std::shared_ptr<Work> done_;
};

void SelfMessages::Shared::deliver(const Sent& message, Receive& receive) {
  if (!fits(message.signature, receive.signature())) {
    const std::string name = absl::StrCat("rank ", rank);
    fail(Op::kRecv, message.tag,
         message_mismatch(name, receive.signature(), name, message.signature, message.tag));
  }
  receive.take(message.copy);
}

SelfMessages::SelfMessages(int rank, Copy copy, Done done, Fail fail)
    : shared_(std::make_shared<Shared>()) {
  shared_->rank = rank;
  shared_->copy = std::move(copy);
  shared_->done = std::move(done);
  shared_->fail = std::move(fail);
}

SelfMessages::~SelfMessages() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->waiting.clear();
}

std::shared_ptr<Work> SelfMessages::send(const Collective& message) {
  Sent sent{.tag = std::string(message.tag), .signature = message.signature(), .copy = {}};
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  for (auto place = shared_->waiting.begin(); place != shared_->waiting.end(); ++place) {
    if ((*place)->tag() != sent.tag) continue;
    const std::shared_ptr<Receive> receive = *place;
    shared_->waiting.erase(place);
    sent.copy = message.input;  // for now: it is copied in the call
    shared_->deliver(sent, *receive);
    return shared_->done();
  }
  sent.copy = at::empty({message.input.numel()}, message.input.options());
  shared_->copy(sent.copy, message.input);
  shared_->sent.push_back(std::move(sent));
  return shared_->done();
}

std::shared_ptr<Work> SelfMessages::receive(const Collective& message) {
  auto receive = std::make_shared<Receive>(shared_, message);
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  for (auto place = shared_->sent.begin(); place != shared_->sent.end(); ++place) {
    if (place->tag != receive->tag()) continue;
    const Sent sent = std::move(*place);
    shared_->sent.erase(place);
    shared_->deliver(sent, *receive);
    return receive;
  }
  shared_->waiting.push_back(receive);
  return receive;
}

}  // namespace tessera::internal
