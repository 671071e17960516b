#include "tessera/distributed_sampler.h"

#include <map>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/data/shared_sampler.h"
#include "tessera/process_group.h"

namespace tessera::data {

DistributedSampler::DistributedSampler(int64_t size, int world, int rank,
                                       const SamplerOptions& options)
    : shared_(std::make_shared<internal::SharedSampler>(size, world, rank, options)) {}

DistributedSampler::DistributedSampler(int64_t size, const ProcessGroup& group,
                                       const SamplerOptions& options)
    : DistributedSampler(size, group.size(), group.rank(), options) {}

int64_t DistributedSampler::epoch() const { return state().epoch; }

void DistributedSampler::set_epoch(int64_t epoch) { shared_->set_epoch(epoch); }

void DistributedSampler::advance(int64_t batches) { shared_->advance(batches); }

void DistributedSampler::advance_samples(int64_t samples) { shared_->advance_samples(samples); }

SamplerState DistributedSampler::state() const { return shared_->state(); }

void DistributedSampler::load_state(const SamplerState& state) { shared_->load_state(state); }

bool DistributedSampler::is_never_advanced() const { return shared_->is_never_advanced(); }

void DistributedSampler::check_ranks(ProcessGroup& group) const {
  internal::require_equal(group, shared_->lines(group.rank(), group.size()), "sampler");
}

std::vector<size_t> DistributedSampler::indices() const { return shared_->indices(); }

int64_t DistributedSampler::size() const { return shared_->size(); }

int64_t DistributedSampler::num_samples() const { return shared_->num_samples(); }

int64_t DistributedSampler::total_size() const { return shared_->total_size(); }

void DistributedSampler::reset(std::optional<size_t> new_size) { shared_->reset(new_size); }

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  return shared_->next(batch_size);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, number] : state().numbers()) archive.write(name, c10::IValue(number));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  std::map<std::string, int64_t> numbers;
  for (const auto& [name, number] : SamplerState().numbers()) {
    c10::IValue value;
    if (archive.try_read(name, value) && value.isInt()) numbers[name] = value.toInt();
  }
  load_state(SamplerState::from_numbers(numbers));
}

}  // namespace tessera::data
