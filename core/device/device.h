#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// A point in a stream, like a CUDA event. If it is recorded again, only the last recording counts.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Local, never blocks. Returns true if everything that was in the stream at the last recording
  /// has run, or if the event was never recorded.
  virtual bool is_done() = 0;
  /// Blocks the calling thread until is_done().
  virtual void synchronize() = 0;

 protected:
  Event() = default;
};

/// An ordered queue of work on a device. No call blocks, not even the destructor: queued work still
/// runs. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Records `event`, which comes from the same device, after everything queued so far.
  virtual void record(Event& event) = 0;
  /// Work queued from now on runs after everything that precedes the last recording of `event`.
  virtual void wait(Event& event) = 0;
  /// Queues a copy of `bytes` bytes between two places in this device's memory that do not overlap.
  /// Both must stay alive until the copy has run.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Queues a copy of a tensor's elements. Both tensors are contiguous and have the same dtype and
  /// numel; each lies on this device or in memory from allocate_on_host(). Both must stay alive
  /// until the copy has run.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Returns the stream as the device's own libraries take it: a cudaStream_t, or a
  /// HostStreamHandle*.
  virtual void* handle() = 0;

 protected:
  Stream() = default;
};

/// The streams, events and memory with which a device communicates and computes at the same time.
/// One object per rank. It knows no other ranks and does not communicate.
class Device {
 public:
  enum class Priority : uint8_t { kDefault, kHigh };

  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Returns LibTorch's name of this device, on which its tensors lie.
  virtual at::Device torch_device() const = 0;
  /// Returns the stream on which the calling thread's operators run now.
  virtual std::shared_ptr<Stream> current_stream() = 0;
  virtual std::shared_ptr<Stream> make_stream(Priority priority) = 0;
  virtual std::shared_ptr<Event> make_event() = 0;
  /// Makes `stream`, which comes from this device, the calling thread's current one until the
  /// returned object is destroyed. The same thread must destroy it. Throws c10::Error on a device
  /// with only one stream.
  virtual std::shared_ptr<void> use(Stream& stream);
  /// Returns an uninitialised 1-d tensor on this device. Throws c10::Error if there is no space.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// Returns an uninitialised 1-d tensor in host memory (pinned, for a GPU), for asynchronous
  /// copies to and from the device. Throws c10::Error if there is no space.
  virtual at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) = 0;

 protected:
  Device() = default;
};

/// Returns the Device for streams, events and memory at `device`, which must be a GPU. LibTorch's
/// CUDA half must be loaded. Throws c10::Error for any other place.
std::shared_ptr<Device> device_at(at::Device device);

}  // namespace tessera::internal
