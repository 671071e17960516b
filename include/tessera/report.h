#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/gather_counts.h"
#include "tessera/memory_meter.h"
#include "tessera/step_result.h"
#include "tessera/strategy.h"
#include "tessera/unit_plan.h"

namespace tessera {

/// What Engine::report() returns: a description of an engine and of its work on one rank until that
/// call. Has what PyTorch's DDPLoggingData has, and the memory in use besides. A plain value. Bytes
/// of a tensor are the bytes of its elements in its present dtype.
struct Report {
  struct Model {
    std::string type;        ///< C++ type of the module
    int64_t parameters = 0;  ///< number of distinct parameters, without ignored ones
    int64_t elements = 0;    ///< number of elements of these parameters
    int64_t bytes = 0;       ///< of these parameters, wherever they lie
    int64_t trained = 0;     ///< number of parameters that require gradients
    int64_t trained_elements = 0;
    int64_t trained_bytes = 0;
    /// The bytes of the parameters of each dtype ("Float", ...), sorted by the dtype's name.
    std::vector<std::pair<std::string, int64_t>> bytes_by_dtype;
    int64_t buffers = 0;  ///< number of buffers that the engine saves
    int64_t buffer_bytes = 0;
  };

  /// A unit, as in Engine::units().
  struct Unit {
    std::string name;
    UnitKind kind = UnitKind::kPlain;
    std::vector<std::string> parameters;  ///< first names, in the order of the flat buffer
    int64_t elements = 0;                 ///< number of elements, padding included
    std::string dtype;                    ///< dtype of the parameters
    int64_t bytes = 0;                    ///< bytes of the elements in `dtype`
    std::string communication_dtype;      ///< dtype in which gradients are reduced
    /// How many bytes one reduction of the unit takes: the bytes of its elements in
    /// communication_dtype. 0 if the unit is frozen.
    int64_t communication_bytes = 0;
  };

  /// Means over sampled steps, in seconds, on the thread that trains. Sampled are the first ten
  /// steps since the engine was made or rebuilt (set_trainable(), add_group()) and then every 100th
  /// step. On a GPU no steps are sampled, because the host's times say little there. A step whose
  /// gradients zero_grad() drops does not count.
  struct Times {
    int64_t sampled_steps = 0;
    /// From the end of the previous step or backward to the first gradient, including what the
    /// program does in that time.
    double forward = 0.0;
    double backward = 0.0;  ///< from the first gradient until autograd has ended, including the
                            ///< reductions in between
    double communication = 0.0;  ///< seconds in which at least one reduction was under way
    /// The part of `communication` that backward did not wait for: almost nothing where the ranks'
    /// own threads communicate (ProcessGroupOptions::lane).
    double overlap = 0.0;
    double update = 0.0;              ///< inside step()
    double communicated_bytes = 0.0;  ///< bytes of gradients given to collectives per step
  };

  struct Hook {
    std::string name;      ///< CommHook::name()
    std::string settings;  ///< CommHook::settings()
    int64_t bytes = 0;     ///< CommHook::bytes()
  };

  struct Memory {
    MemoryBytes now, peak;  ///< Engine::memory(); `peak` has each class at its own peak
    int64_t peak_total = 0;
    /// How many backwards of the last step reduced gradients. The predictions are for this number.
    int micro_steps = 1;
    MemoryBytes predicted, predicted_peak;  ///< predicted_memory(), predicted_peak_memory()
  };

  Strategy strategy = Strategy::kDdp;
  Degrees degrees = {};
  /// Every field of Options with its value in force, as text.
  std::vector<std::pair<std::string, std::string>> options;
  int rank = 0;
  int world = 1;
  std::string backend;  ///< "shm", "nccl", ...
  std::string device;   ///< "cpu", "cuda:0"
  Model model;
  /// In the order in which the first backward reduces them; frozen units come last.
  std::vector<Unit> units;
  int64_t steps = 0;     ///< Engine::steps()
  StepResult last_step;  ///< Engine::last_result()
  /// First names of trained parameters that had a gradient on no rank in the last step. Under
  /// asynchronous steps: trained parameters that had no gradient on this rank.
  std::vector<std::string> unused_parameters;
  int64_t unused_bytes = 0;
  Times times;
  std::optional<Hook> comm_hook;
  GatherCounts gathers;  ///< Engine::gather_counts()
  Memory memory;
};

/// Returns one JSON object (RFC 8259) with the fields under the same names. Numbers that are not
/// finite are null.
std::string to_json(const Report& report);

/// Returns the report as text for people, some 30 lines.
std::string to_text(const Report& report);

}  // namespace tessera
