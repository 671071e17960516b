#include "tessera/checkpoint/engine/step_source.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <absl/types/span.h>

#include "tessera/checkpoint/engine/checkpoint_names.h"
#include "tessera/core/process/progress_report.h"

namespace tessera::internal {

namespace {

absl::Span<char> span_of(const at::Tensor& values) {
  return absl::MakeSpan(static_cast<char*>(values.mutable_data_ptr()), values.nbytes());
}

}  // namespace

StepSource::StepSource(StepReader& reader) : reader_(reader) {
  for (const auto& [name, entry] : reader.manifest().entries) {
    if (!is_state_entry(name)) continue;
    entries_[name] = {.sizes = entry.form.sizes,
                      .strides = entry.form.strides,
                      .dtype = entry.form.dtype,
                      .pieces = {}};
  }
}

std::string StepSource::problem_of(const std::vector<StateOutline>& needed) {
  for (const StateOutline& outline : needed) {
    status_ = verify(outline);
    if (!status_.ok()) return std::string(status_.message());
  }
  return "";
}

absl::Status StepSource::verify(const StateOutline& outline) {
  constexpr int64_t kChunk = 1 << 20;
  const auto width = static_cast<int64_t>(c10::elementSize(outline.form.dtype));
  const at::Tensor scratch = at::empty({kChunk}, at::kByte);
  for (const Range& range : outline.ranges) {
    for (int64_t begin = range.begin; begin < range.end(); begin += kChunk / width) {
      report_life();
      const int64_t numel = std::min(kChunk / width, range.end() - begin);
      absl::Status status = reader_.read(
          outline.name, begin, span_of(scratch).first(static_cast<size_t>(numel * width)));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void StepSource::read(const std::string& name, int64_t begin, const at::Tensor& to) {
  report_life();
  const absl::Status status = reader_.read(name, begin, span_of(to));
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

absl::StatusOr<at::Tensor> read_tensor(StepReader& reader, const std::string& name) {
  const EntryForm& form = reader.manifest().entries.at(name).form;
  at::Tensor values = at::empty_strided(form.sizes, form.strides, form.dtype);
  if (values.numel() > 0) {
    const absl::Status status = reader.read(name, 0, span_of(values));
    if (!status.ok()) return status;
  }
  return values;
}

}  // namespace tessera::internal
