#include "tessera/core/comm/nccl/memory.h"

#include <map>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/core/process/ending_thread.h"

namespace tessera::internal::nccl {
namespace {

constexpr int64_t round_up(int64_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

/// Every rank's problem is everyone's c10::Error.
void refuse_alike(World& world, Pending& pending, int rank, std::string_view what,
                  const std::string& problem) {
  std::string message;
  const auto problems = exchange(world, pending, rank, what, problem);
  for (size_t one = 0; one < problems.size(); ++one) {
    if (problems[one].empty()) continue;
    absl::StrAppend(&message, message.empty() ? "" : "\n",
                    "[comm] allocate: ", pending.progress().name_of(static_cast<int>(one)), " ",
                    problems[one]);
  }
  if (message.empty()) return;
  pending.mark_finished();
  TORCH_CHECK(false, message);
}

}  // namespace

/// The windows of a group, by their first byte.
struct Memory::Windows {
  struct Window {
    int64_t number;  // equal on all ranks
    int64_t bytes;
  };

  std::mutex mutex;
  std::map<const char*, Window> all;

  /// The window with this address, and the place in it.
  std::pair<int64_t, int64_t> find(const void* data) {
    const auto* address = static_cast<const char*>(data);
    const std::lock_guard<std::mutex> lock(mutex);
    auto next = all.upper_bound(address);
    if (next == all.begin()) return {-1, 0};
    --next;
    const int64_t offset = address - next->first;
    return offset < next->second.bytes ? std::pair(next->second.number, offset)
                                       : std::pair(int64_t{-1}, int64_t{0});
  }
};

/// What ncclMemAlloc gave, until nothing uses it; see Note [End of registered memory].
struct Memory::Block {
  void* data;
  int64_t bytes;
  std::shared_ptr<World> world;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::shared_ptr<Windows> windows;
  std::shared_ptr<Stream> stream;  // current at the allocation

  ~Block() {
    try {
      {
        const std::lock_guard<std::mutex> lock(windows->mutex);
        windows->all.erase(static_cast<const char*>(data));
      }
      Device& device = *world->options().device;
      std::vector<std::shared_ptr<Event>> ends;
      for (const auto& last : {stream, device.current_stream()}) {
        ends.push_back(device.make_event());
        last->record(*ends.back());
      }
      EndingThread("the release of NCCL's memory", [data = data, world = std::move(world),
                                                    ends = std::move(ends),
                                                    communicators = std::move(communicators)] {
        try {
          // NCCL makes the device current and goes back; from none, that is GPU 0.
          const c10::DeviceGuard here(world->options().device->torch_device());
          for (const auto& end : ends) end->synchronize();
          for (const auto& communicator : communicators) communicator->deregister_memory(data);
          world->options().api->mem_free(data);
        } catch (...) {  // a device that fails has no use for it
        }
      }).detach();
    } catch (...) {  // no memory, or a device that is gone: it stays until the process ends
    }
  }
};

Memory::Memory(std::shared_ptr<World> world,
               std::vector<std::shared_ptr<Communicator>> communicators)
    : world_(std::move(world)),
      communicators_(std::move(communicators)),
      windows_(std::make_shared<Windows>()) {}

std::shared_ptr<Memory::Block> Memory::take(int64_t bytes, std::string& problem) {
  const WorldOptions& options = world_->options();
  const c10::DeviceGuard here(options.device->torch_device());
  void* data = nullptr;
  const Result result = options.api->mem_alloc(&data, static_cast<size_t>(bytes));
  if (result == Result::kSuccess && data != nullptr) {
    return std::make_shared<Block>(data, bytes, world_, communicators_, windows_,
                                   options.device->current_stream());
  }
  problem = absl::StrCat("got no memory for ", bytes, " bytes (NCCL reports ",
                         options.api->get_error_string(result),
                         "), expected them; use smaller buffers or free memory");
  return nullptr;
}

void Memory::enroll(Pending& pending, const Block& block, Communicator::Registration kind) {
  const c10::DeviceGuard here(world_->options().device->torch_device());
  for (const auto& communicator : communicators_) {
    check_result(*world_, pending, *communicator,
                 communicator->register_memory(block.data, static_cast<size_t>(block.bytes), kind));
    await_ready(*world_, pending, *communicator);
  }
}

at::Tensor Memory::tensor_of(std::shared_ptr<Block> block, int64_t numel, at::ScalarType dtype) {
  const at::Device device = world_->options().device->torch_device();
  void* const data = block->data;
  return at::for_blob(data, {numel})
      .deleter([block = std::move(block)](void*) mutable { block.reset(); })
      .options(at::TensorOptions(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor Memory::allocate_buffer(Pending& pending, int64_t numel, at::ScalarType dtype) {
  std::string problem;
  auto block = take(round_up(numel * static_cast<int64_t>(c10::elementSize(dtype))), problem);
  TORCH_CHECK(block != nullptr, "[comm] allocate: ", problem);
  enroll(pending, *block, Communicator::Registration::kBuffer);
  return tensor_of(std::move(block), numel, dtype);
}

at::Tensor Memory::allocate_window(Pending& pending, int rank, int64_t numel, at::ScalarType dtype,
                                   int64_t bytes) {
  std::string problem;
  auto block = take(round_up(bytes), problem);
  // Before anyone waits in NCCL for one that does not come.
  refuse_alike(*world_, pending, rank, "memory", problem);
  enroll(pending, *block, Communicator::Registration::kWindow);
  const bool is_alone = pending.progress().world_ranks().size() == 1;
  for (const auto& communicator : communicators_) {
    if (is_alone || communicator->has_registered(block->data)) continue;
    problem =
        "got no window from NCCL, expected GPUs that NVLink connects, and neither NCCL_WIN_ENABLE=0"
        " nor NCCL_CUMEM_ENABLE=0; set memory = kRegistered";
  }
  refuse_alike(*world_, pending, rank, "window", problem);
  {
    const std::lock_guard<std::mutex> lock(windows_->mutex);
    windows_->all[static_cast<const char*>(block->data)] = {pending.call().sequence, block->bytes};
  }
  return tensor_of(std::move(block), numel, dtype);
}

std::string Memory::place_of(const at::Tensor& tensor, const at::Tensor& other) {
  const auto [number, offset] = windows_->find(tensor.const_data_ptr());
  const bool is_other_in = windows_->find(other.const_data_ptr()).first >= 0;
  if (number < 0) return is_other_in ? " half in a window" : "";
  return absl::StrCat(" at window ", number, " + ", offset, is_other_in ? "" : ", half");
}

}  // namespace tessera::internal::nccl
