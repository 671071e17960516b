#include "tessera/optim/cuda/step_decision.h"

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/optim/cuda/queue.h"
#include "tessera/optim/formulas/loss_scaler.h"

namespace tessera::internal::cuda {
namespace {

constexpr int64_t kOutcomeWords = sizeof(StepOutcome) / sizeof(double);
constexpr int64_t kScaleWords = sizeof(LossScaleState) / sizeof(double);
constexpr int64_t kNumbers = kOutcomeWords + kScaleWords;
static_assert(sizeof(StepOutcome) == kOutcomeWords * sizeof(double));
static_assert(sizeof(LossScaleState) == kScaleWords * sizeof(double));
static_assert(offsetof(LossScaleState, scale) == 0);

std::optional<LossScale> checked(std::optional<LossScale> loss_scale) {
  if (loss_scale.has_value()) LossScaler{*loss_scale};  // throws if it is invalid
  return loss_scale;
}

}  // namespace

StepDecision::StepDecision(size_t parameters, double max_norm, std::optional<LossScale> loss_scale,
                           std::shared_ptr<const Api> api, std::shared_ptr<Device> device)
    : api_(std::move(api)),
      device_(std::move(device)),
      parameters_(static_cast<int64_t>(parameters)),
      max_norm_(max_norm),
      loss_scale_(checked(loss_scale)),
      numbers_(device_->allocate(kNumbers, at::kDouble)),
      uploads_(device_, kScaleWords) {
  queue(*api_, *device_, "zero", [&](void* stream) {
    return api_->zero(numbers_.mutable_data_ptr(), kNumbers * int64_t{sizeof(double)}, stream);
  });
  if (loss_scale_.has_value()) load({.scale = loss_scale_->initial, .good_steps = 0});
}

const StepOutcome* StepDecision::outcome() const {
  return static_cast<const StepOutcome*>(numbers_.const_data_ptr());
}

LossScaleState* StepDecision::state() const {
  if (!loss_scale_.has_value()) return nullptr;
  return reinterpret_cast<LossScaleState*>(numbers_.mutable_data_ptr<double>() + kOutcomeWords);
}

void StepDecision::load(LossScaleState loaded) {
  TORCH_CHECK(loss_scale_.has_value(),
              "[optim] loss scale: got one to load, expected none; set "
              "Options::loss_scale");
  LossScaler(*loss_scale_).load(loaded.scale, loaded.good_steps);  // throws if the state is invalid
  const at::Tensor& upload = uploads_.take();
  std::memcpy(upload.mutable_data_ptr(), &loaded, sizeof(loaded));
  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(numbers_.narrow(0, kOutcomeWords, kScaleWords), upload.view(at::kDouble));
  uploads_.queued(*stream);
}

at::Tensor StepDecision::scale() const {
  TORCH_CHECK(loss_scale_.has_value(),
              "[optim] loss scale: got none, expected one; set "
              "Options::loss_scale");
  return numbers_.select(0, kOutcomeWords);
}

void StepDecision::decide(const at::Tensor& words, int world_size, double divisor) {
  require_words(words);
  TORCH_CHECK(world_size >= 1 && world_size <= kMaxRanks, "[optim] world size: got ", world_size,
              ", expected 1 to ", kMaxRanks);
  auto* outcome = static_cast<StepOutcome*>(numbers_.mutable_data_ptr());
  const DecideArguments arguments = {.words = words.const_data_ptr<int64_t>(),
                                     .parameters = parameters_,
                                     .world_size = world_size,
                                     .loss_scale = state(),
                                     .max_norm = max_norm_,
                                     .outcome = outcome,
                                     .divisor = divisor};
  queue(*api_, *device_, "decide", [&](void* stream) { return api_->decide(&arguments, stream); });
  if (!loss_scale_.has_value()) return;
  const LossScaleRule rule = {.growth = loss_scale_->growth,
                              .backoff = loss_scale_->backoff,
                              .growth_interval = loss_scale_->growth_interval};
  queue(*api_, *device_, "update_loss_scale",
        [&](void* stream) { return api_->update_loss_scale(state(), rule, outcome, stream); });
}

void StepDecision::require_words(const at::Tensor& words) const {
  TORCH_CHECK(words.defined() && words.scalar_type() == at::kLong && words.is_contiguous() &&
                  words.numel() == step_words(parameters_) &&
                  words.device() == device_->torch_device(),
              "[optim] words: got ", words.defined() ? words.numel() : 0,
              " elements, expected the ", step_words(parameters_), " of StepSums::words()");
}

void StepDecision::start_reading(const at::Tensor& words) {
  require_words(words);
  TORCH_CHECK(pending() < kReadings, "[optim] readings: got ", pending(),
              " that are not read, expected less than ", kReadings, "; call read() first");
  Readback& readback = readbacks_[started_ % kReadings];
  if (readback.is_there == nullptr) {
    readback = {device_->allocate_on_host(kNumbers, at::kDouble),
                device_->allocate_on_host(step_words(parameters_), at::kLong),
                device_->make_event()};
  }
  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(readback.numbers, numbers_);
  stream->copy(readback.words, words);
  stream->record(*readback.is_there);
  ++started_;
}

StepDecision::Reading StepDecision::read() {
  TORCH_CHECK(pending() > 0,
              "[optim] readings: got none, expected one; call start_reading() first");
  const Readback& readback = readbacks_[read_ % kReadings];
  readback.is_there->synchronize();
  ++read_;

  Reading reading = {};
  const auto* numbers = readback.numbers.const_data_ptr<double>();
  std::memcpy(&reading.outcome, numbers, sizeof(reading.outcome));
  reading.scale = {.scale = 1.0, .good_steps = 0};
  if (loss_scale_.has_value()) {
    std::memcpy(&reading.scale, numbers + kOutcomeWords, sizeof(reading.scale));
  }
  const auto* words = readback.words.const_data_ptr<int64_t>();
  reading.squares = ExactSum::load(
      std::span<const int64_t, ExactSum::kWords>(words + kSquaresAt, ExactSum::kWords));
  const int64_t* non_finite = words + kNonFiniteAt;
  reading.non_finite.assign(non_finite, non_finite + parameters_);
  const int64_t* used = words + used_at(parameters_);
  for (int64_t i = 0; i < parameters_; ++i) reading.used.push_back(used[i] > 0 ? 1 : 0);
  reading.refused = reading.outcome.refusals != 0;
  reading.agreed = reading.outcome.agrees != 0;
  return reading;
}

}  // namespace tessera::internal::cuda
