#pragma once

#include <memory>

namespace tessera::internal::testing {

/// A graph of a pretended GPU. Throws c10::Error with CUDA's words.
class FakeGraph {
 public:
  virtual ~FakeGraph() = default;

  /// On the calling thread's current stream of the device, which is not the default one.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// On the calling thread's current stream.
  virtual void replay() = 0;
};

std::unique_ptr<FakeGraph> make_fake_graph(int device);

}  // namespace tessera::internal::testing
