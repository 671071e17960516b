#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/collective.h"
#include "tessera/core/device/device.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Messages of a rank to itself, for backends that cannot send them otherwise. Copies each message,
/// and matches sends and receives by tag in call order. Thread-safe. Works may outlive this object.
class SelfMessages {
 public:
  /// Throws CommError for a receive with this tag.
  using Fail = std::function<void(const std::string& tag, const std::string& cause)>;

  /// `device`: where tensors lie; null: the host.
  SelfMessages(int rank, std::shared_ptr<Device> device, Fail fail)
      : rank_(rank), device_(std::move(device)), fail_(std::move(fail)) {}

  /// Local. A send copies the message, and is over when the copy is made. A receive's wait() fails
  /// if the message has not been sent by then, because no other rank would send it.
  std::shared_ptr<Work> run(const Collective& message);

 private:
  class Half;

  const int rank_;
  const std::shared_ptr<Device> device_;
  const Fail fail_;
  std::mutex mutex_;
  // The sends and receives that are not matched yet. With one tag, either only sends or only
  // receives are in the list.
  std::list<std::shared_ptr<Half>> open_;
};

}  // namespace tessera::internal
