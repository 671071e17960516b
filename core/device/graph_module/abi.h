#pragma once

/// The interface of libtessera_cuda_graph.so, the module that captures CUDA graphs with LibTorch's
/// at::cuda::CUDAGraph, because LibTorch's allocator and generators take part.
/// core/device/graph_api.h looks its functions up at run time; nothing links them.
///
/// A graph is used by one thread at a time. Functions return 0, or 1 with the reason in
/// tessera_cuda_graph_error_text(). None waits for the device.
namespace tessera::internal::cuda_graph {

/// Raised with every change of this file.
inline constexpr int kInterfaceVersion = 1;

extern "C" {

/// kInterfaceVersion of the build.
int tessera_cuda_graph_interface_version();
/// TORCH_VERSION of the build. C++ crosses from this module to LibTorch, so it fits no other.
const char* tessera_cuda_graph_torch_version();
/// Returns why the calling thread's last call failed. Never null; valid until its next call.
const char* tessera_cuda_graph_error_text();

/// Makes a graph of a device, with memory of its own or, if `beside` is not null, from the memory
/// of that graph, which is of the same device.
int tessera_cuda_graph_make(int device, const void* beside, void** graph);
/// Captures what is queued on the calling thread's current stream, which is of the graph's device
/// and not the default one, and on streams that wait for it. Once per graph; a failure leaves
/// nothing captured and nothing capturing.
int tessera_cuda_graph_begin(void* graph);
/// Ends the capture and instantiates, on the thread and the current stream of begin. Whether or not
/// it fails, nothing is captured any more.
int tessera_cuda_graph_end(void* graph);
/// Queues the graph on the calling thread's current stream of the graph's device.
int tessera_cuda_graph_replay(void* graph);
/// Gives up a capture that has not ended. Null is allowed. Never throws.
void tessera_cuda_graph_destroy(void* graph);

}  // extern "C"

}  // namespace tessera::internal::cuda_graph
