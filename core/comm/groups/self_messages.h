#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/collective.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Messages of a rank to itself, for backends that have no other way: copies, matched by tag in
/// the order of the calls. Thread-safe; Works may outlive it.
class SelfMessages {
 public:
  /// Makes `to` equal to `from`, tensors of equal dtype and numel. Called inside the calls below.
  using Copy = std::function<void(const at::Tensor& to, const at::Tensor& from)>;
  /// The Work of what `copy` has begun.
  using Done = std::function<std::shared_ptr<Work>()>;
  /// Throws CommError for a call with this tag.
  using Fail = std::function<void(Op op, const std::string& tag, const std::string& cause)>;

  SelfMessages(int rank, Copy copy, Done done, Fail fail);
  ~SelfMessages();
  SelfMessages(const SelfMessages&) = delete;
  SelfMessages& operator=(const SelfMessages&) = delete;

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
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::internal
