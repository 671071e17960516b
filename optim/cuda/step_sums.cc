#include "tessera/optim/cuda/step_sums.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/optim/cuda/dtype.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/optim/cuda/queue.h"

namespace tessera::internal::cuda {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);
/// The number of words, beginning with word kRefusalsAt, that write_own_words() writes in one
/// piece.
constexpr int64_t kOwnWords = kNonFiniteAt - kRefusalsAt;

/// Returns the pieces of parameters in `range` of a unit. Positions are counted from the start of
/// `range`, and parameters are indices in the table.
std::vector<Piece> pieces_in(const PlannedUnit& unit, Range range) {
  std::vector<Segment> segments = unit.layout.segments(range);
  for (Segment& segment : segments) {
    segment.parameter = unit.parameters[segment.parameter];
    segment.buffer_offset -= range.begin;
  }
  return cut_into_pieces(segments);
}

template <typename RangeOf>
std::vector<std::vector<Piece>> piece_lists(const UnitPlan& plan, const RangeOf& range_of) {
  std::vector<std::vector<Piece>> lists;
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    lists.push_back(pieces_in(plan[unit], range_of(plan[unit].layout)));
  }
  return lists;
}

/// Returns `api`, or throws c10::Error with the text of problem_of() if there is a problem. Called
/// to initialise the first member, so that it throws before anything is queued.
std::shared_ptr<const Api> checked(std::shared_ptr<const Api> api, const UnitPlan& plan,
                                   const SliceMap& slices) {
  const std::string problem = problem_of(plan, slices.world_size());
  TORCH_CHECK(problem.empty(), problem);
  return api;
}

void require_trainable(size_t unit, size_t units) {
  TORCH_CHECK(unit < units, "[optim] unit: got number ", unit, ", expected less than ", units);
}

}  // namespace

std::string problem_of(const UnitPlan& plan, int world_size) {
  std::string text;
  const auto add = [&text](const auto&... words) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", words...);
  };
  if (world_size > kMaxRanks) {
    add("[optim] world size on GPUs: got ", world_size, ", expected at most ", kMaxRanks);
  }
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    const PlannedUnit& planned = plan[unit];
    const UnitPrecision& precision = planned.precision;
    if (precision.master != at::kFloat) {
      add("[optim] unit '", planned.name, "' master: got ", c10::toString(precision.master),
          ", expected Float on a GPU; set precision.master, or train on the CPU");
    }
    for (const auto& [name, dtype] : {std::pair{"parameters", precision.parameters},
                                      {"communication", precision.communication},
                                      {"reduce", precision.reduce}}) {
      if (has_kernels(dtype)) continue;
      add("[optim] unit '", planned.name, "' ", name, ": got ", c10::toString(dtype),
          ", expected Float, BFloat16 or Half on a GPU; set precision.", name,
          ", or train on the CPU");
    }
  }
  return text;
}

StepSums::StepSums(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
                   std::shared_ptr<const Api> api, std::shared_ptr<Device> device)
    : api_(checked(std::move(api), plan, slices)),
      device_(std::move(device)),
      parameters_(static_cast<int64_t>(table.size())),
      words_(device_->allocate(step_words(parameters_), at::kLong)),
      unit_pieces_(*device_, piece_lists(plan,
                                         [](const FlatLayout& layout) {
                                           return Range{0, layout.numel()};
                                         })),
      atom_pieces_(
          *device_,
          piece_lists(plan, [&](const FlatLayout& layout) { return slices.atom(layout); })),
      uploads_(device_, kOwnWords + parameters_) {
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    unit_numels_.push_back(plan[unit].layout.numel());
    atoms_.push_back(slices.atom(plan[unit].layout));
  }
  clear();
}

int64_t* StepSums::at(int64_t word) const { return words_.mutable_data_ptr<int64_t>() + word; }

const int64_t* StepSums::used() const { return at(used_at(parameters_)); }

int64_t StepSums::bytes() const {
  return static_cast<int64_t>(words_.nbytes()) + unit_pieces_.bytes() + atom_pieces_.bytes();
}

void StepSums::clear() {
  queue(*api_, *device_, "zero",
        [&](void* stream) { return api_->zero(at(0), words_.numel() * kWordBytes, stream); });
}

void StepSums::count_non_finite(size_t unit, const at::Tensor& gradient_buffer) {
  require_trainable(unit, unit_numels_.size());
  require_elements("gradients", gradient_buffer, unit_numels_[unit], device_->torch_device());
  queue(*api_, *device_, "count_non_finite", [&](void* stream) {
    return api_->count_non_finite(gradient_buffer.const_data_ptr(),
                                  dtype_of(gradient_buffer.scalar_type()), unit_pieces_.items(unit),
                                  unit_pieces_.count(unit), at(kNonFiniteAt), stream);
  });
}

void StepSums::add_squares(size_t unit, const at::Tensor& kept, int64_t begin) {
  require_trainable(unit, atoms_.size());
  require_elements("gradient", kept, kept.defined() ? kept.numel() : 0, device_->torch_device());
  const Range atom = atoms_[unit];
  TORCH_CHECK(begin <= atom.begin && atom.end() <= begin + kept.numel(),
              "[optim] gradient: got elements ", begin, " to ", begin + kept.numel(),
              " of the unit, expected all of this rank's part, ", atom.begin, " to ", atom.end());
  const auto* from = static_cast<const char*>(kept.const_data_ptr()) +
                     (atom.begin - begin) * static_cast<int64_t>(kept.element_size());
  queue(*api_, *device_, "add_squares", [&](void* stream) {
    return api_->add_squares(from, dtype_of(kept.scalar_type()), atom_pieces_.items(unit),
                             atom_pieces_.count(unit), at(kSquaresAt), stream);
  });
}

void StepSums::write_own_words(std::span<const uint8_t> used_here, uint64_t hash, bool refuses) {
  TORCH_CHECK(static_cast<int64_t>(used_here.size()) == parameters_, "[optim] used: got ",
              used_here.size(), " entries, expected ", parameters_);
  const at::Tensor& upload = uploads_.take();
  auto* words = upload.mutable_data_ptr<int64_t>();
  words[0] = refuses ? 1 : 0;
  constexpr int kHashBits = kAgreementPieces * kAgreementBits;
  // The words hold only 60 of the hash's 64 bits, so its top 4 bits are mixed into the lowest 4.
  hash ^= hash >> kHashBits;
  for (int piece = 0; piece < kAgreementPieces; ++piece) {
    const auto bits = static_cast<int64_t>(hash >> (piece * kAgreementBits) &
                                           ((uint64_t{1} << kAgreementBits) - 1));
    words[kAgreementAt - kRefusalsAt + 2 * piece] = bits;
    words[kAgreementAt - kRefusalsAt + 2 * piece + 1] = bits * bits;
  }
  std::transform(used_here.begin(), used_here.end(), words + kOwnWords,
                 [](uint8_t used) { return int64_t{used != 0 ? 1 : 0}; });

  const std::shared_ptr<Stream> stream = device_->current_stream();
  stream->copy(words_.narrow(0, kRefusalsAt, kOwnWords), upload.narrow(0, 0, kOwnWords));
  stream->copy(words_.narrow(0, used_at(parameters_), parameters_),
               upload.narrow(0, kOwnWords, parameters_));
  uploads_.queued(*stream);
  queue(*api_, *device_, "normalize",
        [&](void* handle) { return api_->normalize(at(kSquaresAt), handle); });
}

}  // namespace tessera::internal::cuda
