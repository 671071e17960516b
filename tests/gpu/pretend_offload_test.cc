// For each wait of an offloaded step: what goes wrong without it, on streams that stop when told.
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/fsdp/shard_uploads.h"
#include "tessera/tests/support/gate.h"
#include "tessera/zero/step/offloaded_gradients.h"

namespace tessera::internal::testing {
namespace {

/// The wait that a device omits.
enum class Drops : uint8_t { kNothing, kCopysWait, kComputationsWait, kHostsWait };

class WrappedEvent final : public Event {
 public:
  WrappedEvent(std::shared_ptr<Event> inner, Drops drops)
      : inner_(std::move(inner)), drops_(drops) {}
  bool is_done() override { return inner_->is_done(); }
  void synchronize() override {
    if (drops_ != Drops::kHostsWait) inner_->synchronize();
  }
  Event& inner() { return *inner_; }

 private:
  const std::shared_ptr<Event> inner_;
  const Drops drops_;
};

class WrappedStream final : public Stream {
 public:
  WrappedStream(std::shared_ptr<Stream> inner, bool waits)
      : inner_(std::move(inner)), waits_(waits) {}
  void record(Event& event) override { inner_->record(static_cast<WrappedEvent&>(event).inner()); }
  void wait(Event& event) override {
    if (waits_) inner_->wait(static_cast<WrappedEvent&>(event).inner());
  }
  void copy(void* to, const void* from, int64_t bytes) override { inner_->copy(to, from, bytes); }
  void copy(const at::Tensor& to, const at::Tensor& from) override { inner_->copy(to, from); }
  void* handle() override { return inner_->handle(); }
  Stream& inner() { return *inner_; }

 private:
  const std::shared_ptr<Stream> inner_;
  const bool waits_;
};

/// GPU 0 without some of its waits.
class ForgetfulDevice final : public Device {
 public:
  explicit ForgetfulDevice(Drops drops) : drops_(drops) { inner_.make_current(); }

  at::Device torch_device() const override { return inner_.torch_device(); }
  std::shared_ptr<Stream> current_stream() override {
    return std::make_shared<WrappedStream>(inner_.current_stream(),
                                           drops_ != Drops::kComputationsWait);
  }
  std::shared_ptr<Stream> make_stream(Priority priority) override {
    beside = inner_.make_stream(priority);
    return std::make_shared<WrappedStream>(beside, drops_ != Drops::kCopysWait);
  }
  std::shared_ptr<Event> make_event() override {
    return std::make_shared<WrappedEvent>(inner_.make_event(), drops_);
  }
  std::shared_ptr<void> use(Stream& stream) override {
    return inner_.use(static_cast<WrappedStream&>(stream).inner());
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_.allocate(numel, dtype);
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return inner_.allocate_on_host(numel, dtype);
  }

  at::Tensor on_device(double value) {
    const at::Tensor made = allocate(kNumel, at::kFloat);
    made.fill_(value);
    return made;
  }
  at::Tensor on_host(double value) { return allocate_on_host(kNumel, at::kFloat).fill_(value); }
  /// Blocks until `stream` has executed everything queued.
  void drain(Stream& stream) {
    const std::shared_ptr<Event> event = inner_.make_event();
    stream.record(*event);
    event->synchronize();
  }
  std::shared_ptr<Stream> now() { return inner_.current_stream(); }

  static constexpr int64_t kNumel = 256;
  std::shared_ptr<Stream> beside;  // created last

 private:
  CudaDevice inner_{0};
  const Drops drops_;
};

double first(const at::Tensor& tensor) { return tensor.cpu()[0].item<double>(); }

/// A shard with the value 1, new values 2 for it, and a reader.
struct Upload {
  explicit Upload(Drops drops) : device(std::make_shared<ForgetfulDevice>(drops)) {
    device->drain(*device->now());
  }
  std::shared_ptr<ForgetfulDevice> device;
  MemoryMeter meter;
  ShardUploads uploads{device, 0, meter};
  at::Tensor shard = device->on_device(1);
  at::Tensor seen = device->on_device(0);
  at::Tensor values = device->on_host(2);
};

/// What is read on the device before new values are queued: 1 if correct.
double seen_before_upload(Drops drops) {
  Upload made(drops);
  Gate computing(made.device->now()->handle());
  made.device->now()->copy(made.seen, made.shard);
  made.uploads.start(made.shard, made.values);
  if (drops != Drops::kNothing) made.device->drain(*made.device->beside);
  computing.open();
  made.device->drain(*made.device->now());
  made.uploads.await();
  return first(made.seen);
}

TEST(PretendOffloadWaits, NewValuesWaitForWhoReadsTheOld) {
  EXPECT_EQ(seen_before_upload(Drops::kNothing), 1);
  EXPECT_EQ(seen_before_upload(Drops::kCopysWait), 2) << "the negative control";
}

/// What is read on the device after join(): 2 if correct.
double seen_behind_upload(Drops drops) {
  Upload made(drops);
  Gate copying(made.device->beside->handle());
  made.uploads.start(made.shard, made.values);
  made.uploads.join();
  made.device->now()->copy(made.seen, made.shard);
  if (drops != Drops::kNothing) made.device->drain(*made.device->now());
  copying.open();
  made.device->drain(*made.device->now());
  made.uploads.await();
  return first(made.seen);
}

TEST(PretendOffloadWaits, ComputationWaitsForNewValues) {
  EXPECT_EQ(seen_behind_upload(Drops::kNothing), 2);
  EXPECT_EQ(seen_behind_upload(Drops::kComputationsWait), 1) << "the negative control";
}

/// What arrives of values that the host overwrites after await(): 2 if correct.
double arrived_of_masters(Drops drops) {
  Upload made(drops);
  Gate copying(made.device->beside->handle());
  made.uploads.start(made.shard, made.values);
  auto next_step = std::async(std::launch::async, [&] {
    made.uploads.await();
    made.values.fill_(3);
  });
  if (drops != Drops::kNothing) next_step.wait();
  copying.open();
  next_step.wait();
  made.device->drain(*made.device->beside);
  return first(made.shard);
}

TEST(PretendOffloadWaits, HostWaitsBeforeItUpdatesWhatIsCopied) {
  EXPECT_EQ(arrived_of_masters(Drops::kNothing), 2);
  EXPECT_EQ(arrived_of_masters(Drops::kHostsWait), 3) << "the negative control";
}

/// The same for values that are rounded into two buffers: [2, 3, 4] if correct.
std::vector<double> arrived_of_rounded(Drops drops) {
  auto device = std::make_shared<ForgetfulDevice>(drops);
  MemoryMeter meter;
  ShardUploads uploads(device, 2 * ForgetfulDevice::kNumel, meter);
  EXPECT_EQ(meter.now()[MemoryClass::kHost], 4 * ForgetfulDevice::kNumel);
  std::vector<at::Tensor> shards;
  for (int i = 0; i < 3; ++i) shards.push_back(device->on_device(1).to(at::kBFloat16));
  device->drain(*device->now());
  Gate copying(device->beside->handle());
  auto update = std::async(std::launch::async, [&] {
    for (int i = 0; i < 3; ++i) uploads.start(shards[i], device->on_host(2 + i));
  });
  if (drops != Drops::kNothing) update.wait();
  copying.open();
  update.wait();
  device->drain(*device->beside);
  return {first(shards[0]), first(shards[1]), first(shards[2])};
}

TEST(PretendOffloadWaits, BuffersAreUsedAgainWhenTheyAreFree) {
  EXPECT_EQ(arrived_of_rounded(Drops::kNothing), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(arrived_of_rounded(Drops::kHostsWait), (std::vector<double>{4, 3, 4}))
      << "the negative control";
}

/// One unit in a world of two; this rank keeps one half.
struct Gradients {
  explicit Gradients(Drops drops)
      : device(std::make_shared<ForgetfulDevice>(drops)),
        table({{"weight", at::zeros({2 * ForgetfulDevice::kNumel}).requires_grad_()}}),
        plan(table, {{.name = "unit", .parameters = {0}}}, 2),
        slices({1, 2, 2}, 2, 0),
        gradients(table, plan, slices, *cuda::load_api(), device, meter) {
    device->drain(*device->now());
  }
  std::shared_ptr<ForgetfulDevice> device;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  MemoryMeter meter;
  OffloadedGradients gradients;
};

/// What the host reads of a gradient that is 2 after reduction.
double read_after_reduction(Drops drops) {
  Gradients made(drops);
  const at::Tensor value = made.device->on_device(1);
  const at::Tensor reduced = made.device->on_device(2);
  made.device->drain(*made.device->now());
  Gate reducing(made.device->now()->handle());
  made.device->now()->copy(value, reduced);
  made.gradients.reduced(0, value);
  if (drops != Drops::kNothing) made.device->drain(*made.device->beside);
  reducing.open();
  return first(made.gradients.gradient(0));
}

TEST(PretendOffloadWaits, GradientsWaitForTheReduction) {
  EXPECT_EQ(read_after_reduction(Drops::kNothing), 2);
  EXPECT_EQ(read_after_reduction(Drops::kCopysWait), 1) << "the negative control";
}

/// The host's copy of a gradient of 1 that becomes 2 as soon as it may be overwritten.
double read_before_rewriting(Drops drops) {
  Gradients made(drops);
  const at::Tensor value = made.device->on_device(1);
  const at::Tensor next = made.device->on_device(2);
  made.device->drain(*made.device->now());
  made.gradients.reduced(0, next);
  const at::Tensor staged = made.gradients.gradient(0);
  made.gradients.rewriting(0);

  Gate copying(made.device->beside->handle());
  made.gradients.reduced(0, value);
  made.gradients.rewriting(0);
  made.device->now()->copy(value, next);
  if (drops != Drops::kNothing) made.device->drain(*made.device->now());
  copying.open();
  made.device->drain(*made.device->beside);
  made.device->drain(*made.device->now());
  return first(staged);
}

TEST(PretendOffloadWaits, NextReductionWaitsForTheCopy) {
  EXPECT_EQ(read_before_rewriting(Drops::kNothing), 1);
  EXPECT_EQ(read_before_rewriting(Drops::kComputationsWait), 2) << "the negative control";
}

/// What the host reads of a gradient (2) whose copy is late, after an earlier one (1).
double read_when_wanted(Drops drops) {
  Gradients made(drops);
  const at::Tensor before = made.device->on_device(1);
  const at::Tensor value = made.device->on_device(2);
  made.device->drain(*made.device->now());
  made.gradients.reduced(0, before);
  made.device->drain(*made.device->beside);
  made.gradients.rewriting(0);

  Gate copying(made.device->beside->handle());
  made.gradients.reduced(0, value);
  auto step =
      std::async(std::launch::async, [&] { return first(made.gradients.gradient(0).clone()); });
  if (drops != Drops::kNothing) step.wait();
  copying.open();
  return step.get();
}

TEST(PretendOffloadWaits, HostWaitsForGradients) {
  EXPECT_EQ(read_when_wanted(Drops::kNothing), 2);
  EXPECT_EQ(read_when_wanted(Drops::kHostsWait), 1) << "the negative control";
}

/// What a gather reads of a shard (2) that the host overwrites (3) after await(), into an
/// unsharded-parameter buffer that another reader still reads (1): {value seen by that reader,
/// value gathered}.
std::pair<double, double> gathered(Drops drops) {
  auto device = std::make_shared<ForgetfulDevice>(drops);
  MemoryMeter meter;
  ShardUploads shards(device, /*rounded_bytes=*/0, meter);
  const at::Tensor buffer = device->on_device(1);
  const at::Tensor seen = device->on_device(0);
  const at::Tensor found = device->on_device(0);
  const at::Tensor shard = device->on_host(2);
  device->drain(*device->now());
  Gate computing(device->now()->handle());
  device->now()->copy(seen, buffer);
  {
    shards.start(buffer, shard);
    const std::shared_ptr<void> behind_the_copy = shards.use();
    device->now()->copy(found, buffer);  // like a collective
  }
  auto step = std::async(std::launch::async, [&] {
    shards.await();
    shard.fill_(3);
  });
  if (drops == Drops::kHostsWait) step.wait();
  if (drops == Drops::kCopysWait) device->drain(*device->beside);
  computing.open();
  step.wait();
  device->drain(*device->beside);
  device->drain(*device->now());
  return {first(seen), first(found)};
}

TEST(PretendOffloadWaits, ShardsWaitForBuffersAndHostForShards) {
  EXPECT_EQ(gathered(Drops::kNothing), std::pair(1.0, 2.0));
  EXPECT_EQ(gathered(Drops::kCopysWait), std::pair(2.0, 2.0)) << "the negative control";
  EXPECT_EQ(gathered(Drops::kHostsWait), std::pair(1.0, 3.0)) << "the negative control";
}

}  // namespace
}  // namespace tessera::internal::testing
