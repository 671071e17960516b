#pragma once

#include <cstdint>

#include "tessera/optim/cuda/step_words.h"
#include "tessera/optim/formulas/loss_scale_rule.h"

/// The interface of libtessera_cuda.so, the module with the optimizer's kernels. api.h looks up the
/// module's functions at run time; nothing links the module.
///
/// Every function queues work on `stream` (a cudaStream_t of the calling thread's current device)
/// and returns. No function waits for the device, allocates or copies to the host, and all may be
/// captured into a graph. Pointers are to device memory unless said otherwise. Functions return 0,
/// a cudaError_t, or one of the kRefused... constants below; tessera_cuda_error_text gives the text
/// of this status.
///
/// Bits: each element is computed by the functions that the CPU uses (optim/formulas, narrow.h,
/// exact_digits.h), with fused multiply-adds only where these functions call std::fma, and with
/// IEEE division and roots, so that equal inputs give the bits of the CPU, whatever the launch.
/// Payloads of NaNs may differ.
namespace tessera::internal::cuda {

/// Raised with every change of this file.
inline constexpr int kInterfaceVersion = 4;

/// Element types of gradients and of parameters.
enum class Dtype : int32_t { kFloat = 0, kBFloat16 = 1, kHalf = 2 };

inline constexpr int kRefusedDtype = -1;  ///< an argument is not a value of Dtype
/// An argument is null, negative or out of range, or is not a value of Rule.
inline constexpr int kRefusedArgument = -2;

/// A part of one parameter in a slice of a flat buffer. The kernels share out their work piece by
/// piece. A piece starts on a multiple of 64 elements of the parameter. See pieces.h.
struct Piece {
  int64_t begin;  ///< index of the piece's first element in the slice
  int32_t numel;
  int32_t parameter;  ///< index in the ParameterTable
};

/// The decision on a step, for the kernels after it and for the host, which reads it later.
struct StepOutcome {
  double grad_norm;  ///< of the mean gradient without the loss scale; not finite if non_finite > 0
  /// Gradients are multiplied by this: clip factor / loss scale / divisor; 0 if the step is not
  /// applied.
  double gradient_scale;
  double loss_scale;  ///< in force for this step
  /// How many elements of the ranks' own gradients, before these were averaged, were NaN or
  /// infinite: the sum over all ranks.
  int64_t non_finite;
  int64_t applies;   ///< 1: the step is applied; 0: nothing changes
  int64_t refusals;  ///< number of ranks that refused the step
  int64_t agrees;    ///< 1: all ranks have the same hash (kAgreementAt); 0: they do not
};

/// The algorithms that have kernels. Each has a formula in optim/formulas.
enum class Rule : int32_t {
  kAdamw = 0,
  kAdam = 1,
  kSgd = 2,
  kLion = 3,
  kAdagrad = 4,
  kRmsprop = 5
};

/// The most states per element that a rule has. Arrays of states are in the order of
/// Algorithm::states.
inline constexpr int kMaxStates = 3;

/// The present numbers of a parameter group.
struct GroupNumbers {
  /// The ...HyperParameters struct of the rule's formula.
  alignas(double) unsigned char numbers[56];
  Rule rule;
  int32_t padding;
};

/// One parameter's numbers for the update of this step.
struct ParameterUpdate {
  alignas(float) unsigned char scalars[44];  ///< the rule's Scalars (rules.h)
  int32_t applies;                           ///< 0: the parameter is left alone entirely
};

/// The index in each state's array at which a piece's states begin; negative if the piece's
/// parameter does not have the state.
struct StatePlaces {
  int64_t begin[kMaxStates];
};

/// What tessera_cuda_decide takes. The struct lies in host memory and is copied before the call
/// returns; it points to device memory.
struct DecideArguments {
  /// [step_words(parameters)] in the layout of step_words.h, summed over ranks.
  const int64_t* words;
  int64_t parameters;                ///< number of parameters of the table
  int64_t world_size;                ///< number of ranks whose words were summed, at most kMaxRanks
  const LossScaleState* loss_scale;  ///< null if there is no loss scale
  double max_norm;                   ///< gradients are clipped to this norm; infinity: not clipped
  StepOutcome* outcome;
  double divisor = 1.0;  ///< gradients are divided by this and by the loss scale
};

/// What tessera_cuda_advance takes. The struct lies in host memory and is copied before the call
/// returns; it points to device memory.
struct AdvanceArguments {
  int64_t count;               ///< number of parameters of the table
  const int64_t* used;         ///< [count] above 0: some rank used the parameter
  const int32_t* group_of;     ///< [count] each parameter's index in `groups`
  const GroupNumbers* groups;  ///< the groups' present numbers
  const StepOutcome* outcome;
  int64_t* steps;            ///< [count] each parameter's step count, which the call updates
  ParameterUpdate* updates;  ///< [count] written for tessera_cuda_update
};

/// What tessera_cuda_update takes. The struct lies in host memory and is copied before the call
/// returns; it points to device memory. Values, gradient and target are slices that begin with the
/// same element; no arrays overlap.
struct UpdateArguments {
  Rule rule;
  const Piece* pieces;  ///< of parameters whose groups have that rule
  int64_t piece_count;
  const StatePlaces* places;  ///< [piece_count]
  const ParameterUpdate* updates;
  float* values;  ///< parameters or masters
  const void* gradient;
  float* states[kMaxStates];  ///< null if no piece has the state
  /// The new values are also written here, rounded to the nearest, ties to even; may be null.
  void* target;
  Dtype gradient_dtype;
  Dtype target_dtype;
};

extern "C" {

/// Returns the kInterfaceVersion with which the module was built.
int tessera_cuda_interface_version();
/// Returns the text of `status`. Never null; static memory.
const char* tessera_cuda_error_text(int status);

/// Fills `bytes` bytes with zeros.
int tessera_cuda_zero(void* to, int64_t bytes, void* stream);

/// sum[i] += gradient[i] in fp32, to add up the 16-bit gradients of micro-steps. One pass.
int tessera_cuda_accumulate(float* sum, const void* gradient, Dtype dtype, int64_t numel,
                            void* stream);
/// Converts masters into the slice that ranks gather: target[i] = values[i], rounded to the
/// nearest, ties to even. One pass.
int tessera_cuda_cast(void* target, Dtype dtype, const float* values, int64_t numel, void* stream);

/// Adds the number of NaN or infinite elements in each piece to counts[piece.parameter]; counts of
/// parameters without such elements are not touched. Counts are exact in any order of additions,
/// because they are integers; an all_reduce of int64 can add those of several ranks. One pass.
int tessera_cuda_count_non_finite(const void* gradient, Dtype dtype, const Piece* pieces,
                                  int64_t piece_count, int64_t* counts, void* stream);
/// Adds the squares of the pieces to the ExactSum in `words` ([70] int64, zero at first). The
/// contract is that of core's add_squares: each block of 64 elements, counted from the parameter's
/// start, is summed in fp64 in a fixed order, and the sums of blocks are added without rounding. So
/// the normalized words equal the CPU's, whatever the launch, the pieces or the slices. At most
/// 2^30 blocks may be added before tessera_cuda_normalize. One pass.
int tessera_cuda_add_squares(const void* gradient, Dtype dtype, const Piece* pieces,
                             int64_t piece_count, int64_t* words, void* stream);
/// Brings `words` into the form of ExactSum::store. After that, a SUM all_reduce of int64 can add
/// the words of up to 2^30 ranks.
int tessera_cuda_normalize(int64_t* words, void* stream);

/// Decides from the sums over all ranks whether the step applies. It does if no rank refuses it,
/// all ranks agree, no element was NaN or infinite, and the sum of squares is finite.
int tessera_cuda_decide(const DecideArguments* arguments, void* stream);
/// Replaces `state` by next_loss_scale() of it. If a rank refused the step or ranks disagree,
/// `state` stays. Call it once per step, after tessera_cuda_decide.
int tessera_cuda_update_loss_scale(LossScaleState* state, LossScaleRule rule,
                                   const StepOutcome* outcome, void* stream);

/// If the step applies, computes the numbers of every used parameter's update (`updates`), such as
/// bias corrections, and increments the parameter's step count if its rule counts the update
/// (rules.h). Call it once per step, before the updates. Each parameter has its own step count. An
/// unused parameter's count does not change, just as torch::optim skips parameters with undefined
/// gradients.
int tessera_cuda_advance(const AdvanceArguments* arguments, void* stream);
/// Updates the pieces in one pass: multiplies the gradient by StepOutcome::gradient_scale, updates
/// states and values, and writes the new values to `target`, too. Elements outside the pieces, and
/// those whose update does not apply, are left alone in every array. AdamW reads and writes 28
/// bytes per element with fp32 gradients, plus the target's bytes. Another rule takes 8 bytes more
/// for each state beyond AdamW's two, or 8 bytes less for each state fewer.
int tessera_cuda_update(const UpdateArguments* arguments, void* stream);

}  // extern "C"

}  // namespace tessera::internal::cuda
