#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/collective.h"
#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Messages of a rank to itself, for backends that have no other way: copies, matched by tag in
/// the order of the calls. Thread-safe; Works may outlive it.
class SelfMessages {
 public:
  /// Throws CommError for a receive with this tag.
  using Fail = std::function<void(const std::string& tag, const std::string& cause)>;

  /// `device`: where tensors lie; null: the host.
  SelfMessages(int rank, std::shared_ptr<Device> device, Fail fail);

  /// Local. Copies the message; it is over when the copy is.
  std::shared_ptr<Work> send(const Collective& message);
  /// Local. wait() fails if nothing has been sent by then: nobody else would send it.
  std::shared_ptr<Work> receive(const Collective& message);

 private:
  class Receive;
  struct Sent {
    std::string tag;
    CallSignature signature;
    at::Tensor copy;
  };

  void deliver(const Sent& message, Receive& receive);

  const int rank_;
  const std::shared_ptr<Device> device_;
  const Fail fail_;
  std::mutex mutex_;
  std::list<Sent> sent_;                          // not received
  std::list<std::shared_ptr<Receive>> receives_;  // not sent
};

}  // namespace tessera::internal
