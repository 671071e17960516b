#pragma once

#include <memory>

namespace tessera::internal::testing {

/// A CUDA graph of a fake GPU. Throws c10::Error with CUDA's text.
class FakeGraph {
 public:
  virtual ~FakeGraph() = default;

  /// Captures the calling thread's current stream of the device, which must not be the default one.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// Runs on the calling thread's current stream.
  virtual void replay() = 0;
};

std::unique_ptr<FakeGraph> make_fake_graph(int device);

}  // namespace tessera::internal::testing
