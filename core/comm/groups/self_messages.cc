#include "tessera/core/comm/groups/self_messages.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/stream_work.h"

namespace tessera::internal {

class SelfMessages::Receive final : public Work {
 public:
  Receive(const Collective& message, int rank, Fail fail)
      : tag(message.tag),
        signature(message.signature()),
        output_(message.output),
        rank_(rank),
        fail_(std::move(fail)) {}

  bool is_completed() override {
    const auto copied = find_copied();
    return copied != nullptr && copied->is_completed();
  }

  void wait() override {
    const auto copied = find_copied();
    if (copied != nullptr) return copied->wait();
    fail_(tag, absl::StrCat("waits for a message that rank ", rank_, " has to send itself first"));
  }

  int source() const override { return rank_; }

  void take(const std::shared_ptr<Device>& device, const at::Tensor& from) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_copy(device.get(), output_, from);
    copied_ = queued_work(device);
    output_ = at::Tensor();
  }

  const std::string tag;
  const CallSignature signature;

 private:
  std::shared_ptr<Work> find_copied() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return copied_;
  }

  at::Tensor output_;
  const int rank_;
  const Fail fail_;
  std::mutex mutex_;
  std::shared_ptr<Work> copied_;
};

SelfMessages::SelfMessages(int rank, std::shared_ptr<Device> device, Fail fail)
    : rank_(rank), device_(std::move(device)), fail_(std::move(fail)) {}

void SelfMessages::deliver(const Sent& message, Receive& receive) {
  if (!fits(message.signature, receive.signature)) {
    const std::string name = absl::StrCat("rank ", rank_);
    fail_(message.tag,
          message_mismatch(name, receive.signature, name, message.signature, message.tag));
  }
  receive.take(device_, message.copy);
}

std::shared_ptr<Work> SelfMessages::send(const Collective& message) {
  Sent sent{.tag = std::string(message.tag), .signature = message.signature(), .copy = {}};
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const auto& receive) { return receive->tag == sent.tag; });
  if (place != receives_.end()) {
    const std::shared_ptr<Receive> receive = *place;
    receives_.erase(place);
    sent.copy = message.input;  // for now: it is copied in the call
    deliver(sent, *receive);
  } else {
    sent.copy = at::empty({message.input.numel()}, message.input.options());
    queue_copy(device_.get(), sent.copy, message.input);
    sent_.push_back(std::move(sent));
  }
  return queued_work(device_);
}

std::shared_ptr<Work> SelfMessages::receive(const Collective& message) {
  auto receive = std::make_shared<Receive>(message, rank_, fail_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = std::find_if(sent_.begin(), sent_.end(),
                                  [&](const Sent& sent) { return sent.tag == receive->tag; });
  if (place == sent_.end()) {
    receives_.push_back(receive);
    return receive;
  }
  const Sent sent = std::move(*place);
  sent_.erase(place);
  deliver(sent, *receive);
  return receive;
}

}  // namespace tessera::internal
