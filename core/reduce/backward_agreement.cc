#include "tessera/core/reduce/backward_agreement.h"

#include <algorithm>
#include <bit>
#include <span>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

constexpr size_t kBitsPerWord = 64;
// Positions of the first words of a report.
constexpr size_t kHistory = 0;
constexpr size_t kFlags = 1;
constexpr size_t kWeight = 2;
constexpr size_t kRounds = 3;
// The word of a unit holds the unit's number of rounds in the low half, and the unit's position in
// the order of completion in the high half.
constexpr uint64_t kRoundsMask = 0xffffffff;
constexpr unsigned kPositionShift = 32;
// The bits of word kFlags. Each stands for a field of Report: objects, has_plain, has_weighted.
constexpr int64_t kObjects = 1;
constexpr int64_t kPlain = 2;
constexpr int64_t kWeighted = 4;

int64_t words_for(size_t units, size_t parameters) {
  return static_cast<int64_t>(kRounds + units + (parameters + kBitsPerWord - 1) / kBitsPerWord);
}

}  // namespace

BackwardAgreement::BackwardAgreement(ProcessGroup& group, size_t units, size_t parameters)
    : size_(group.size()), all_gather_(group, words_for(units, parameters)) {}

std::string BackwardAgreement::exchange(int64_t history, const std::vector<uint8_t>& local,
                                        std::vector<size_t>& rounds, std::vector<uint8_t>& used,
                                        std::vector<uint32_t>& positions) {
  const std::span<int64_t> mine = all_gather_.mine();
  std::fill(mine.begin(), mine.end(), int64_t{0});
  mine[kHistory] = history;
  mine[kFlags] = (report_.objects ? kObjects : 0) | (report_.has_plain ? kPlain : 0) |
                 (report_.has_weighted ? kWeighted : 0);
  mine[kWeight] = std::bit_cast<int64_t>(report_.weight);
  for (size_t unit = 0; unit < rounds.size(); ++unit) {
    mine[kRounds + unit] = static_cast<int64_t>(rounds[unit]);
  }
  for (size_t unit = 0; unit < positions.size(); ++unit) {
    mine[kRounds + unit] |= static_cast<int64_t>(uint64_t{positions[unit]} << kPositionShift);
  }
  const size_t first_bits = kRounds + rounds.size();
  for (size_t i = 0; i < local.size(); ++i) {
    const auto bit = static_cast<int64_t>(uint64_t{local[i]} << (i % kBitsPerWord));
    mine[first_bits + i / kBitsPerWord] |= bit;
  }

  all_gather_.exchange("end of backward");
  is_objected_ = false;

  std::string disagreement;
  for (int rank = 0; rank < size_; ++rank) {
    const std::span<const int64_t> rank_report = all_gather_.of(rank);
    is_objected_ = is_objected_ || (rank_report[kFlags] & kObjects) != 0;
    if (disagreement.empty() && rank_report[kHistory] != all_gather_.of(0)[kHistory]) {
      disagreement = absl::StrCat(
          "[grad] rank ", rank,
          " and rank 0 differ in what they reduced or dropped before the end of this backward; "
          "call backward, no_sync and zero_grad alike on all ranks; engine->zero_grad() on all "
          "ranks lets training go on");
    }
    for (size_t unit = 0; unit < rounds.size(); ++unit) {
      const auto word = static_cast<uint64_t>(rank_report[kRounds + unit]);
      rounds[unit] = std::max(rounds[unit], static_cast<size_t>(word & kRoundsMask));
      if (rank == 0 && !positions.empty()) {
        positions[unit] = static_cast<uint32_t>(word >> kPositionShift);
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      const auto bits = static_cast<uint64_t>(rank_report[first_bits + i / kBitsPerWord]);
      used[i] |= static_cast<uint8_t>((bits >> (i % kBitsPerWord)) & 1);
    }
  }
  return disagreement;
}

BackwardAgreement::Report BackwardAgreement::report_of(int rank) const {
  const std::span<const int64_t> words = all_gather_.of(rank);
  return {.objects = (words[kFlags] & kObjects) != 0,
          .has_plain = (words[kFlags] & kPlain) != 0,
          .has_weighted = (words[kFlags] & kWeighted) != 0,
          .weight = std::bit_cast<double>(words[kWeight])};
}

}  // namespace tessera::internal
