#include "tessera/state_dict.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/readable.h"
#include "tessera/core/layout/strides.h"

namespace tessera {
using namespace internal;

namespace {

std::string text_of(const std::vector<int64_t>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

std::string problem_of_piece(const StatePiece& piece, const StateEntry& entry) {
  const at::Tensor& values = piece.values;
  if (!values.defined() || values.layout() != at::kStrided || !values.device().is_cpu() ||
      values.dim() != 1 || !values.is_contiguous()) {
    return "got a piece that is no contiguous 1-d CPU tensor, expected one";
  }
  if (values.scalar_type() != entry.dtype) {
    return absl::StrCat("got a piece of ", c10::toString(values.scalar_type()), ", expected ",
                        c10::toString(entry.dtype), " as the entry says");
  }
  if (piece.begin < 0 || values.numel() > entry.numel() - piece.begin) {
    return absl::StrCat("got a piece of elements ", piece.begin, " to ",
                        piece.begin + values.numel(), ", expected a part of 0 to ", entry.numel());
  }
  if (const std::string unreadable = reading_problem(values); !unreadable.empty()) {
    return absl::StrCat("got a piece whose values cannot be read: ", unreadable);
  }
  return "";
}

}  // namespace

int64_t StateEntry::numel() const {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return numel;
}

std::string StateEntry::problem() const {
  if (std::string problem = strides_problem(sizes, strides); !problem.empty()) return problem;
  for (const StatePiece& piece : pieces) {
    std::string problem = problem_of_piece(piece, *this);
    if (!problem.empty()) return problem;
  }
  return "";
}

bool StateEntry::is_whole() const {
  return pieces.size() == 1 && pieces.front().begin == 0 && pieces.front().values.defined() &&
         pieces.front().values.numel() == numel();
}

at::Tensor StateEntry::tensor() const {
  TORCH_CHECK(is_whole(), "[state] tensor: got an entry of ", pieces.size(),
              " pieces, expected one that covers it; take state_dict(StateScope::kEveryRank) or "
              "kOneRank");
  const std::string wrong = problem();
  TORCH_CHECK(wrong.empty(), "[state] tensor: ", wrong);
  return pieces.front().values.as_strided(sizes, strides);
}

void StateDict::merge(StateDict other) {
  for (const auto& [name, theirs] : other.entries) {
    const auto found = entries.find(name);
    if (found == entries.end()) continue;
    const StateEntry& ours = found->second;
    TORCH_CHECK(theirs.sizes == ours.sizes, "[state] merge '", name, "': got sizes ",
                text_of(theirs.sizes), ", expected ", text_of(ours.sizes),
                "; merge states of one run");
    TORCH_CHECK(theirs.strides == ours.strides, "[state] merge '", name, "': got strides ",
                text_of(theirs.strides), ", expected ", text_of(ours.strides),
                "; merge states of one run");
    TORCH_CHECK(theirs.dtype == ours.dtype, "[state] merge '", name, "': got dtype ", theirs.dtype,
                ", expected ", ours.dtype, "; merge states of one run");
  }
  // merge() moves the entries whose names are new here. The other entries stay in `other`, and the
  // loop below takes their pieces.
  entries.merge(other.entries);
  for (auto& [name, theirs] : other.entries) {
    std::vector<StatePiece>& pieces = entries.at(name).pieces;
    for (StatePiece& piece : theirs.pieces) pieces.push_back(std::move(piece));
  }
}

}  // namespace tessera
