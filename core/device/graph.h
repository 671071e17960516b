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
/// that the capture makes are undefined before the first replay, and hold the results of the last
/// replay after it; their memory lives as long as the graph and as they do. The code must have run
/// a few times before, on stream(), so that libraries have made their handles and chosen their
/// kernels.
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
  /// Never throws and never blocks. Gives up a capture that has not ended; the thread that began it
  /// destroys it. What was replayed runs on.
  virtual ~Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Returns the stream on which it captures; never the default stream. The same for its whole
  /// life.
  virtual c10::Stream stream() const = 0;

  /// Local, non-blocking. Makes stream() the calling thread's current stream, after what the
  /// current one holds, and captures. Until end(), what is queued on it, or on streams that wait
  /// for it, is recorded and does not run. What would have to wait for the device (item(), a copy
  /// to memory that is not pinned, a synchronisation) throws, and so does end() then.
  ///
  /// Throws c10::Error if this graph has been captured, or the current stream is being captured.
  virtual void begin() = 0;

  /// Local. Instantiates the graph, which takes milliseconds. On the thread of begin(). Restores
  /// the current stream from before begin(), and has it wait for stream(). Every stream that joined
  /// must have been waited for by stream(). Throws c10::Error if something in between was not
  /// allowed; the current stream is still restored, and the graph cannot be used.
  virtual void end() = 0;

  /// Local, non-blocking; any thread. Queues the whole graph on the calling thread's current
  /// stream. A replay must not overlap with another one, nor with other users of the same tensors:
  /// queue them on one stream, or order the streams. Random numbers of the device's default
  /// generator go on from replay to replay as they would without a graph. Throws c10::Error before
  /// end() went well.
  virtual void replay() = 0;

 protected:
  Graph() = default;
};

/// Local; loads the module the first time. Captures on a stream of `device` from LibTorch's pool.
/// `device` is a GPU with an index. Throws c10::Error with the remedy if the module is missing or
/// does not fit, or load_cuda_library() has not gone well.
std::unique_ptr<Graph> make_graph(at::Device device);

/// Local. Makes a graph of the same device, on the same stream and from the same memory as `other`,
/// which may be destroyed first: two graphs that never run at once need the memory of the larger
/// one only. A replay of one overwrites what the other left in tensors that nothing refers to any
/// more. Throws c10::Error as above.
std::unique_ptr<Graph> make_graph_beside(const Graph& other);

/// Local, never blocks; any thread, LibTorch's threads of backward as well. Returns true if what
/// the calling thread's operators queue now is captured instead of run: the current stream of the
/// current device is being captured, by a Graph or otherwise. False without LibTorch's CUDA half.
/// Costs a call of the CUDA runtime.
bool is_capturing();

}  // namespace tessera::internal
