#include "tessera/core/comm/groups/self_messages.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/works.h"

namespace tessera::internal {

/// A send or a receive that waits for its counterpart. A receive is also the Work of its call.
class SelfMessages::Half final : public Work {
 public:
  Half(const Collective& message, int rank, const Fail& fail)
      : tag(message.tag),
        signature(message.signature()),
        tensor(message.op == Op::kSend ? message.input : message.output),
        rank_(rank),
        fail_(fail) {}

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

  /// Copies the message `sent` to this receive's tensor. Throws CommError if they do not fit.
  void take(const std::shared_ptr<Device>& device, const Half& sent) {
    if (!fits(sent.signature, signature)) {
      const std::string name = absl::StrCat("rank ", rank_);
      fail_(tag, message_mismatch(name, signature, name, sent.signature, tag));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_copy(device.get(), tensor, sent.tensor);
    copied_ = queued_work(device);
    tensor = at::Tensor();
  }

  const std::string tag;
  const CallSignature signature;
  at::Tensor tensor;  ///< of a send: a copy of the message; of a receive: its output

 private:
  std::shared_ptr<Work> find_copied() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return copied_;
  }

  const int rank_;
  const Fail fail_;
  std::mutex mutex_;
  std::shared_ptr<Work> copied_;
};

std::shared_ptr<Work> SelfMessages::run(const Collective& message) {
  const bool is_send = message.op == Op::kSend;
  const auto half = std::make_shared<Half>(message, rank_, fail_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = std::find_if(open_.begin(), open_.end(), [&](const auto& other) {
    return other->tag == half->tag && other->signature.op != message.op;
  });
  if (place != open_.end()) {
    const std::shared_ptr<Half> other = *place;
    open_.erase(place);
    is_send ? other->take(device_, *half) : half->take(device_, *other);
  } else {
    if (is_send) {
      half->tensor = at::empty({message.input.numel()}, message.input.options());
      queue_copy(device_.get(), half->tensor, message.input);
    }
    open_.push_back(half);
  }
  return is_send ? queued_work(device_) : half;
}

}  // namespace tessera::internal
