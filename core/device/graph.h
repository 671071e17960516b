#pragma once

#include <memory>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace tessera::internal {

/// A CUDA graph: the work that some code queues on a GPU, captured once and replayed many times at
/// the cost of one launch. Used by one thread at a time. Needs libtessera_cuda_graph.so
/// (docs/gpu-internals.md).
///
/// Note [What a graph holds]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// A graph holds kernels and the addresses that they use. What the CPU computes, decides or prints
/// happens once, during the capture. Tensors from before the capture are read and written at their
/// addresses and must stay alive: copy inputs into the same tensors before each replay. Tensors
/// made during the capture have undefined contents before the first replay; after a replay they
/// hold its results. Their memory lives as long as the graph or any of these tensors. The code must
/// have run a few times before, on stream(), so that libraries have made their handles and chosen
/// their kernels.
///
/// Note [Backward in a capture]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// LibTorch runs backward on a thread of its own, each node on the stream that was current when the
/// node was made, and orders these streams by events. Nodes of a captured forward are on stream().
/// The node at a parameter (AccumulateGrad) is made once and belongs to the stream that is current
/// then. Code that keeps these nodes alive, such as hooks, must make them with stream() current, in
/// a c10::StreamGuard. Nodes made on the default stream make the capture fail.
class Graph {
 public:
  /// Never throws and never blocks. Abandons a capture that has not ended; in that case the thread
  /// that began the capture must destroy the graph. Replays that were queued still run.
  virtual ~Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Returns the stream on which this graph captures; never the default stream, and always the same
  /// one.
  virtual c10::Stream stream() const = 0;

  /// Local, non-blocking. Makes stream() wait for the work in the calling thread's current stream,
  /// makes stream() the current stream instead, and starts the capture. Until end(), work that is
  /// queued on stream(), or on streams that wait for it, is recorded and does not run. A call that
  /// has to wait for the device (item(), a copy to memory that is not pinned, a synchronisation)
  /// throws, and then end() throws too.
  ///
  /// Throws c10::Error if this graph was captured already, or the current stream is being captured.
  virtual void begin() = 0;

  /// Local. Ends the capture and instantiates the graph, which takes milliseconds. Call it on the
  /// thread of begin(). Restores the current stream from before begin(), and makes it wait for
  /// stream(). stream() must have waited for every stream that joined the capture. Throws
  /// c10::Error if an operation in the capture was not allowed; the current stream is still
  /// restored, and the graph cannot be used.
  virtual void end() = 0;

  /// Local, non-blocking; any thread. Queues the whole graph on the calling thread's current
  /// stream. A replay must not overlap with another replay, nor with other users of the same
  /// tensors: queue them on one stream, or order the streams. Random numbers of the device's
  /// default generator continue from replay to replay as they would without a graph. Throws
  /// c10::Error unless end() has succeeded.
  virtual void replay() = 0;

 protected:
  Graph() = default;
};

/// Local; loads the module the first time. Makes a graph that captures on a stream of `device`, a
/// GPU with an index, from LibTorch's pool. Throws c10::Error with the remedy if the module is
/// missing or does not fit, or load_cuda_library() has not succeeded.
std::unique_ptr<Graph> make_graph(at::Device device);

/// Local. Makes a graph on the same device and stream as `other`, from the same memory; `other` may
/// be destroyed first. Two graphs that never run at the same time then need only the memory of the
/// larger one. Once nothing refers to a tensor that was made in the capture of one graph, replays
/// of the other graph may overwrite its memory. Throws c10::Error like make_graph().
std::unique_ptr<Graph> make_graph_beside(const Graph& other);

/// Local, never blocks; any thread, including LibTorch's backward threads. Returns true if work
/// that the calling thread's operators queue now is captured instead of run, because a Graph or
/// other code is capturing the current stream of the current device. False without LibTorch's CUDA
/// half. Costs a call of the CUDA runtime.
bool is_capturing();

}  // namespace tessera::internal
