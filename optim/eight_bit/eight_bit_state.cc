#include "tessera/eight_bit_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <c10/util/Exception.h>

#include "tessera/optim/eight_bit/eight_bit.h"
#include "tessera/optim/eight_bit/kernels.h"

namespace tessera {
using namespace internal;

namespace {

constexpr absl::string_view kPrefix = "optimizer.";

bool selects(const std::function<bool(std::string_view)>& by, absl::string_view name) {
  return by == nullptr || by({name.data(), name.size()});
}

/// Returns the parameter if `entry` is "optimizer.<parameter>.<state>" with the given `state`; else
/// "".
absl::string_view parameter_of(absl::string_view entry, absl::string_view state) {
  if (!absl::ConsumePrefix(&entry, kPrefix) || !absl::ConsumeSuffix(&entry, state) ||
      !absl::ConsumeSuffix(&entry, ".")) {
    return "";
  }
  return entry;
}

std::string entry_name(absl::string_view parameter, absl::string_view state) {
  return absl::StrCat(kPrefix, parameter, ".", state);
}

int64_t blocks_of(int64_t numel) { return (numel + kCodeBlock - 1) / kCodeBlock; }

/// Returns the entry for the scales that belong to `codes`; its pieces are still missing.
StateEntry scales_form(const StateEntry& codes) {
  return {.sizes = {blocks_of(codes.numel())}, .strides = {1}, .dtype = at::kFloat, .pieces = {}};
}

StateEntry with_dtype(const StateEntry& entry, at::ScalarType dtype) {
  return {.sizes = entry.sizes, .strides = entry.strides, .dtype = dtype, .pieces = {}};
}

void require_well_formed(const char* call, const std::string& name, const StateEntry& entry) {
  const std::string wrong = entry.problem();
  TORCH_CHECK(wrong.empty(), "[state] ", call, ": '", name, "': ", wrong);
}

CodedMoment moment_of(const at::Tensor& codes, const at::Tensor& scales, int64_t first_scale) {
  return {codes.mutable_data_ptr<uint8_t>(), scales.mutable_data_ptr<float>() + first_scale};
}

void quantize_entry(StateDict& state, const std::string& name, absl::string_view parameter,
                    const MomentNames& names) {
  const StateEntry& moment = state.entries.at(name);
  require_well_formed("quantize_state", name, moment);
  TORCH_CHECK(moment.dtype == at::kFloat || moment.dtype == at::kDouble,
              "[state] quantize_state: '", name, "': got dtype ", moment.dtype,
              ", expected Float or Double");
  StateEntry codes = with_dtype(moment, at::kByte);
  StateEntry scales = scales_form(moment);
  for (const StatePiece& piece : moment.pieces) {
    const int64_t end = piece.begin + piece.values.numel();
    TORCH_CHECK(piece.begin % kCodeBlock == 0 && (end % kCodeBlock == 0 || end == moment.numel()),
                "[state] quantize_state: '", name, "': got a piece of elements ", piece.begin,
                " to ", end, ", expected whole blocks of ", kCodeBlock,
                "; take what state_dict() gives, or the state whole");
    const at::Tensor values = piece.values.to(at::kFloat);
    codes.pieces.push_back({piece.begin, at::empty({values.numel()}, at::kByte)});
    scales.pieces.push_back(
        {piece.begin / kCodeBlock, at::empty({blocks_of(values.numel())}, at::kFloat)});
    quantize(values.const_data_ptr<float>(),
             moment_of(codes.pieces.back().values, scales.pieces.back().values, 0), values.numel(),
             names.is_signed);
  }
  const std::string of(parameter);
  state.entries.erase(name);
  state.entries[entry_name(of, names.codes)] = std::move(codes);
  state.entries[entry_name(of, names.scales)] = std::move(scales);
}

/// Returns the scales of `blocks` blocks, from block `first` on, as one tensor.
at::Tensor scales_from(const StateEntry& scales, const std::string& name, int64_t first,
                       int64_t blocks) {
  at::Tensor all = at::empty({blocks}, at::kFloat);
  for (int64_t block = 0; block < blocks; ++block) {
    const auto piece =
        std::find_if(scales.pieces.begin(), scales.pieces.end(), [&](const StatePiece& candidate) {
          const int64_t at = first + block - candidate.begin;
          return at >= 0 && at < candidate.values.numel();
        });
    TORCH_CHECK(
        piece != scales.pieces.end(), "[state] dequantize_state: '", name,
        "': got no scale of block ", first + block,
        ", expected one for each block of codes that is here; take what state_dict() gives");
    all.mutable_data_ptr<float>()[block] =
        piece->values.const_data_ptr<float>()[first + block - piece->begin];
  }
  return all;
}

void dequantize_entry(StateDict& state, const std::string& name, absl::string_view parameter,
                      const MomentNames& names, at::ScalarType dtype) {
  const std::string of(parameter);
  const StateEntry& codes = state.entries.at(name);
  require_well_formed("dequantize_state", name, codes);
  TORCH_CHECK(codes.dtype == at::kByte, "[state] dequantize_state: '", name, "': got dtype ",
              codes.dtype, ", expected Byte");
  const std::string scales_name = entry_name(of, names.scales);
  const auto scales = state.entries.find(scales_name);
  TORCH_CHECK(scales != state.entries.end(), "[state] dequantize_state: '", scales_name,
              "': missing beside '", name, "'; take what state_dict() gives");
  require_well_formed("dequantize_state", scales_name, scales->second);
  TORCH_CHECK(
      scales->second.dtype == at::kFloat && scales->second.sizes == scales_form(codes).sizes,
      "[state] dequantize_state: '", scales_name, "': got ", scales->second.numel(), " values of ",
      scales->second.dtype, ", expected ", blocks_of(codes.numel()), " of Float, one for each ",
      kCodeBlock, " codes");
  StateEntry moment = with_dtype(codes, dtype);
  for (const StatePiece& piece : codes.pieces) {
    TORCH_CHECK(piece.begin % kCodeBlock == 0, "[state] dequantize_state: '", name,
                "': got a piece from element ", piece.begin, " on, expected whole blocks of ",
                kCodeBlock, "; take what state_dict() gives, or the state whole");
    const int64_t numel = piece.values.numel();
    const at::Tensor own =
        scales_from(scales->second, scales_name, piece.begin / kCodeBlock, blocks_of(numel));
    const at::Tensor values = at::empty({numel}, at::kFloat);
    dequantize(moment_of(piece.values, own, 0), values.mutable_data_ptr<float>(), numel,
               names.is_signed);
    moment.pieces.push_back({piece.begin, values.to(dtype)});
  }
  state.entries.erase(scales_name);
  state.entries.erase(name);
  state.entries[entry_name(of, names.moment)] = std::move(moment);
}

/// For each parameter that `part` selects and that has a state `name`, calls change(entry,
/// parameter), where `entry` is the name of the entry that holds this state.
template <typename Change>
void for_each_entry(const StateDict& state, const EightBitPart& part, absl::string_view name,
                    const Change& change) {
  std::vector<std::string> found;
  for (const auto& [entry, unused] : state.entries) {
    const absl::string_view parameter = parameter_of(entry, name);
    if (!parameter.empty() && selects(part.parameters, parameter)) found.push_back(entry);
  }
  for (const std::string& entry : found) {
    change(entry, std::string(parameter_of(entry, name)));
  }
}

void rename_algorithm(StateDict& state, const EightBitPart& part, const std::string& from,
                      const std::string& to) {
  const std::string suffix = absl::StrCat("algorithm.", from);
  std::vector<std::string> groups;
  for (const auto& [entry, unused] : state.entries) {
    const absl::string_view group = parameter_of(entry, suffix);
    if (!group.empty() && selects(part.groups, group)) groups.emplace_back(group);
  }
  for (const std::string& group : groups) {
    auto node = state.entries.extract(entry_name(group, suffix));
    node.key() = entry_name(group, absl::StrCat("algorithm.", to));
    state.entries.insert(std::move(node));
  }
}

}  // namespace

StateDict quantize_state(StateDict state, const EightBitPart& part) {
  for_each_entry(state, part, "max_exp_avg_sq", [](const std::string& entry, const std::string&) {
    TORCH_CHECK(false, "[state] quantize_state: '", entry,
                "': got AMSGrad's maxima, expected a state without: 8-bit AdamW has none; leave "
                "the parameter out (EightBitPart::parameters)");
  });
  for (const MomentNames& names : {kFirstMoment, kSecondMoment}) {
    for_each_entry(state, part, names.moment,
                   [&](const std::string& entry, const std::string& parameter) {
                     quantize_entry(state, entry, parameter, names);
                   });
  }
  rename_algorithm(state, part, "AdamW", adamw8bit_algorithm().name);
  rename_algorithm(state, part, "Lion", lion8bit_algorithm().name);
  return state;
}

StateDict dequantize_state(StateDict state, const EightBitPart& part) {
  TORCH_CHECK(part.dtype == c10::kFloat || part.dtype == c10::kDouble,
              "[state] dequantize_state: EightBitPart::dtype: got ", part.dtype,
              ", expected Float or Double, the masters'");
  for (const MomentNames& names : {kFirstMoment, kSecondMoment}) {
    for_each_entry(state, part, names.codes,
                   [&](const std::string& entry, const std::string& parameter) {
                     dequantize_entry(state, entry, parameter, names, part.dtype);
                   });
  }
  rename_algorithm(state, part, adamw8bit_algorithm().name, "AdamW");
  rename_algorithm(state, part, lion8bit_algorithm().name, "Lion");
  return state;
}

}  // namespace tessera
