#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/process_group.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_transfer.h"
#include "tessera/zero/state/streamed_state.h"

namespace tessera::internal::testing {

/// How a run splits its state.
struct StateConfiguration {
  std::string name;
  std::function<Degrees(int world)> degrees;
  bool splits;  ///< whether parameters are split, so that frozen ones have a place too
};

/// Other properties in which runs of the suite differ.
struct StateModel {
  at::ScalarType dtype = at::kFloat;
  bool is_contiguous = false;  ///< no channels_last or transposed parameters
  bool has_scaler = false;
};

/// The slices of one rank without an engine: parameters, masters, moments, buffers and counters.
/// Their values are random bits that depend only on a seed and the entry's name.
class StateRun {
 public:
  StateRun(std::shared_ptr<ProcessGroup> world, const StateConfiguration& configuration,
           StateModel model = {});

  /// Fills every slice according to `seed`. Buffers of ranks other than 0 get other bits.
  void fill(uint64_t seed);

  StateDict save(StateScope scope, int rank = 0) { return transfer_->save(scope, rank, counters_); }
  void load(const StateDict& state) { transfer_->load(state, counters_); }
  void save(StateSink& sink) {
    stream_->save(stream_->agree_to_save("write_state", counters_, ""), sink);
  }
  void load(StateSource& source) { stream_->load(source, counters_); }

  /// Describes how this rank's slices and their padding differ from what fill(seed) gives, with
  /// rank 0's buffers on all ranks; empty if they do not.
  std::string differences_from(uint64_t seed) const;

  /// The whole state for fill(seed), made without the code under test.
  static StateDict expected(uint64_t seed, const StateModel& model);

  EngineCounters& counters() { return counters_; }
  FlatOptimizer& optimizer() { return *optimizer_; }
  const ParameterTable& table() const { return table_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }

 private:
  /// One tensor of slices: this rank's part of one kind of value of a unit.
  struct Slice {
    at::Tensor values;
    Range range;
    size_t unit;
    std::string prefix;
    std::string suffix;
  };
  std::vector<Slice> slices_of_rank() const;

  std::shared_ptr<ProcessGroup> world_;
  StateModel model_;
  ParameterTable table_;
  SliceMap slices_;
  UnitPlan plan_;
  MemoryMeter meter_;
  std::vector<NamedTensor> buffers_;
  std::unique_ptr<MasterValues> masters_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::unique_ptr<StateSlices> state_;
  std::unique_ptr<StreamedState> stream_;
  std::unique_ptr<StateTransfer> transfer_;
  EngineCounters counters_;
};

/// The configurations that divide `world`: ddp, zero1, zero2, zero3 and hybrids.
std::vector<StateConfiguration> state_configurations(int world);

/// Describes the differences between two whole states, bit for bit; empty if there are none.
std::string bit_differences(const StateDict& got, const StateDict& expected);

}  // namespace tessera::internal::testing
