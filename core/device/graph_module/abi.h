#pragma once

/// The interface of libtessera_cuda_graph.so, the module that captures CUDA graphs with LibTorch's
/// at::cuda::CUDAGraph. It uses that class because LibTorch's allocator and generators take part in
/// a capture. core/device/graph_api.h looks the functions up at run time; nothing links them.
///
/// A graph is used by one thread at a time. Functions return 0, or 1 with the reason in
/// tessera_cuda_graph_error_text(). No function waits for the device.
namespace tessera::internal::cuda_graph {

/// Increased with every change of this file.
inline constexpr int kInterfaceVersion = 1;

extern "C" {

/// Returns the kInterfaceVersion with which the module was built.
int tessera_cuda_graph_interface_version();
/// Returns the TORCH_VERSION with which the module was built. The module calls LibTorch's C++
/// interface, so it fits no other version.
const char* tessera_cuda_graph_torch_version();
/// Returns why the calling thread's last call failed. Never null; valid until its next call.
const char* tessera_cuda_graph_error_text();

/// Makes a graph on a device. The graph has memory of its own or, if `beside` is not null, shares
/// the memory of the graph `beside`, which must be on the same device.
int tessera_cuda_graph_make(int device, const void* beside, void** graph);
/// Captures work that is queued on the calling thread's current stream, which must be a non-default
/// stream of the graph's device, and on streams that wait for it. Call it once per graph. After a
/// failure nothing is captured and no capture is under way.
int tessera_cuda_graph_begin(void* graph);
/// Ends the capture and instantiates the graph. Call it on the thread that called begin, with the
/// same current stream. No capture is under way afterwards, even if it fails.
int tessera_cuda_graph_end(void* graph);
/// Queues the graph on the calling thread's current stream of the graph's device.
int tessera_cuda_graph_replay(void* graph);
/// Destroys the graph, and abandons a capture that has not ended. Null is allowed. Never throws.
void tessera_cuda_graph_destroy(void* graph);

}  // extern "C"

}  // namespace tessera::internal::cuda_graph
