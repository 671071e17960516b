#include "tessera/bench/macro/train/checkpoint_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/process_group.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double ms_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// Counts the bytes that a rank saves.
struct Count final : tessera::StateSink {
  void begin(const std::vector<tessera::StateOutline>& /*entries*/) override {}
  void write(size_t /*entry*/, int64_t /*begin*/, const at::Tensor& values) override {
    bytes += static_cast<int64_t>(values.nbytes());
  }
  int64_t bytes = 0;
};

}  // namespace

CheckpointTimes::CheckpointTimes(tessera::Engine& engine, std::function<void()> train)
    : engine_(engine), train_(std::move(train)) {
  Count count;
  engine.write_state(count);
  bytes_ = count.bytes;
}

double CheckpointTimes::measure(const std::string& what, const std::string& directory) {
  engine_.group().barrier("checkpoint times");
  if (what == "save") return ms_of([&] { tessera::save_checkpoint(engine_, directory); });
  if (what == "load") {
    return ms_of([&] {
      TORCH_CHECK(tessera::load_checkpoint(engine_, directory).has_value(),
                  "[bench] load: got no step in '", directory, "', expected one; save first");
    });
  }
  if (what == "stall") return stall(directory);
  if (what == "copy") return copy();
  TORCH_CHECK(what == "write", "[bench] checkpoint: got '", what,
              "', expected save, load, stall, copy or write");
  return write(directory + "/plain-" + std::to_string(engine_.group().rank()));
}

double CheckpointTimes::copy() const {
  const std::vector<char> from(static_cast<size_t>(bytes_), 1);
  std::vector<char> to(from.size(), 2);
  train_();  // so that caches hold training's data, as before a save, and not these buffers
  engine_.group().barrier("checkpoint times");
  const double ms = ms_of([&] { std::memcpy(to.data(), from.data(), to.size()); });
  TORCH_CHECK(to.empty() || to.back() == 1);
  return ms;
}

double CheckpointTimes::write(const std::string& path) const {
  constexpr int64_t kBlock = 1 << 20;
  const std::vector<char> from(static_cast<size_t>(bytes_), 1);
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  TORCH_CHECK(file >= 0, "[bench] write: '", path, "': ", std::strerror(errno));
  bool is_written = true;
  const double ms = ms_of([&] {
    for (int64_t done = 0; done < bytes_ && is_written; done += kBlock) {
      const auto part = static_cast<size_t>(std::min(kBlock, bytes_ - done));
      is_written = ::write(file, from.data() + done, part) == static_cast<ssize_t>(part);
    }
    is_written = is_written && ::fsync(file) == 0;
  });
  ::close(file);
  TORCH_CHECK(is_written, "[bench] write: '", path, "': ", std::strerror(errno));
  return ms;
}

double CheckpointTimes::stall(const std::string& directory) {
  tessera::Checkpoints checkpoints(engine_, directory, {.keep = 1});
  checkpoints.save();
  checkpoints.finish();
  train_();
  engine_.group().barrier("checkpoint times");
  const double ms = ms_of([&] { checkpoints.save(); });
  checkpoints.finish();
  return ms;
}

}  // namespace bench
