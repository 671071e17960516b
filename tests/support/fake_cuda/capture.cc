#include "tessera/tests/support/fake_cuda/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/device_stream.h"

namespace tessera::internal::testing {

struct Capture::Marks {
  std::mutex mutex;
  std::map<const Event*, Mark> of;
};

Capture::Marks& Capture::marks() {
  static auto* const marks = new Marks();
  return *marks;
}

std::shared_ptr<Capture> Capture::begin(DeviceStream& origin) {
  TORCH_CHECK(origin.capture() == nullptr,
              "CUDA error: operation not permitted when stream is capturing");
  const std::shared_ptr<Capture> capture(new Capture());
  capture->origin_ = &origin;
  capture->streams_[&origin];
  capture->members_.insert(&origin);
  origin.set_capture(capture);
  return capture;
}

std::string Capture::end() {
  std::set<DeviceStream*> members;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    members.swap(members_);
    Seen& joined = streams_[origin_];
    for (const auto& [stream, seen] : streams_) {
      const auto given = seen.find(stream);
      if (stream != origin_ && given != seen.end() && joined[stream] < given->second &&
          broken_.empty()) {
        broken_ = "CUDA error: capturing stream has unjoined work";
      }
    }
    for (const auto& [data, bytes] : memory_) std::memset(data, 0xFF, bytes);
  }
  for (DeviceStream* stream : members) stream->set_capture(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

void Capture::add(const DeviceStream& stream, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(broken_.empty(),
              "CUDA error: operation failed due to a previous error during capture");
  ++streams_[&stream][&stream];
  work_.push_back(std::move(work));
}

void Capture::record(const DeviceStream& stream, const Event& event) {
  Mark mark{.capture = weak_from_this(), .seen = {}};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    mark.seen = streams_[&stream];
  }
  const std::lock_guard<std::mutex> lock(marks().mutex);
  marks().of[&event] = std::move(mark);
}

void Capture::add_memory(void* data, size_t bytes) {
  std::memset(data, 0, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.emplace_back(data, bytes);
}

void Capture::keep(std::shared_ptr<void> memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(std::move(memory));
}

void Capture::refuse(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_.empty()) broken_ = why;
  }
  TORCH_CHECK(false, why);
}

void Capture::run() const {
  for (const auto& work : work_) work();
}

std::shared_ptr<Capture> Capture::wait(DeviceStream& stream,
                                       const std::shared_ptr<Capture>& capture,
                                       const Event& event) {
  Mark mark;
  {
    const std::lock_guard<std::mutex> lock(marks().mutex);
    const auto found = marks().of.find(&event);
    if (found == marks().of.end()) {
      if (capture == nullptr) return nullptr;
    } else {
      mark = found->second;
    }
  }
  const std::shared_ptr<Capture> other = mark.capture.lock();
  if (other == nullptr && mark.seen.empty() && capture != nullptr) {
    capture->refuse("CUDA error: dependency created on uncaptured work in another stream");
  }
  TORCH_CHECK(other != nullptr,
              "CUDA error: operation not permitted on an event last recorded in a"
              " capturing stream");
  if (capture != nullptr && capture != other) {
    capture->refuse("CUDA error: operation would result in a merge of separate capture sequences");
  }
  if (stream.is_default()) {
    other->refuse(
        "CUDA error: operation would make the legacy stream depend on a capturing"
        " blocking stream");
  }
  const std::lock_guard<std::mutex> lock(other->mutex_);
  TORCH_CHECK(!other->is_over_,
              "CUDA error: operation not permitted on an event last recorded in a"
              " capturing stream");
  other->members_.insert(&stream);
  Seen& seen = other->streams_[&stream];
  for (const auto& [earlier, count] : mark.seen) seen[earlier] = std::max(seen[earlier], count);
  return other;
}

void Capture::forget(const Event& event) {
  const std::lock_guard<std::mutex> lock(marks().mutex);
  marks().of.erase(&event);
}

void Capture::check_on_host(const Event& event) {
  std::shared_ptr<Capture> capture;
  {
    const std::lock_guard<std::mutex> lock(marks().mutex);
    const auto found = marks().of.find(&event);
    if (found == marks().of.end()) return;
    capture = found->second.capture.lock();
  }
  constexpr const char* kWhy =
      "CUDA error: operation not permitted on an event last recorded in a capturing stream";
  TORCH_CHECK(capture != nullptr, kWhy);
  capture->refuse(kWhy);
}

}  // namespace tessera::internal::testing
