#include "tessera/examples/memory_compare/table.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

namespace memory_compare {
namespace {

using tessera::kMemoryClasses;
using tessera::MemoryBytes;
using tessera::MemoryClass;

constexpr MemoryClass kShown[] = {MemoryClass::kParameters, MemoryClass::kGradients,
                                  MemoryClass::kOptimizer,  MemoryClass::kUnshardedParameters,
                                  MemoryClass::kRoot,       MemoryClass::kGradientBuffers};
constexpr const char* kPyTorch = "PyTorch DDP, fp32";

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
std::string cell(int64_t bytes) { return absl::StrFormat("%.2f", mib(bytes)); }

/// Sets control to 0, the class that the formulas do not predict.
MemoryBytes without_control(MemoryBytes bytes) {
  bytes[MemoryClass::kControl] = 0;
  return bytes;
}

int64_t peak_of(const RankMemory& rank) {
  return rank.peak_bytes - rank.held[MemoryClass::kControl];
}

using Cells = std::vector<std::string>;

Cells line_of(const std::string& configuration, const std::string& what, const MemoryBytes& bytes) {
  Cells cells = {configuration, what};
  for (const MemoryClass shown : kShown) cells.push_back(cell(bytes[shown]));
  cells.push_back(cell(without_control(bytes).total()));
  return cells;
}

/// Appends a line for each range of consecutive ranks that held the same bytes.
void append_measured(const Measurement& measurement, std::vector<Cells>& lines) {
  const std::vector<RankMemory>& ranks = measurement.ranks;
  for (size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    last = first;
    int64_t pss_bytes = ranks[first].pss_bytes;
    int64_t shared_bytes = ranks[first].shared_bytes;
    int64_t device_bytes = ranks[first].device_bytes;
    int64_t device_peak_bytes = ranks[first].device_peak_bytes;
    while (last + 1 < ranks.size() &&
           without_control(ranks[last + 1].held) == without_control(ranks[first].held) &&
           peak_of(ranks[last + 1]) == peak_of(ranks[first])) {
      ++last;
      pss_bytes = std::max(pss_bytes, ranks[last].pss_bytes);
      shared_bytes += ranks[last].shared_bytes;
      device_bytes = std::max(device_bytes, ranks[last].device_bytes);
      device_peak_bytes = std::max(device_peak_bytes, ranks[last].device_peak_bytes);
    }
    const std::string who = first == last ? absl::StrCat("measured, rank ", first)
                                          : absl::StrCat("measured, ranks ", first, "-", last);
    Cells cells = line_of("", who, ranks[first].held);
    cells.push_back(cell(peak_of(ranks[first])));
    // The kernel divides a shared page among the ranks that have mapped it so far. So the ranks'
    // numbers vary, but not their mean, which is printed.
    const auto count = static_cast<int64_t>(last - first + 1);
    cells.push_back(shared_bytes >= 0 ? cell(shared_bytes / count) : "?");
    cells.push_back(pss_bytes >= 0 ? cell(pss_bytes) : "?");
    if (device_bytes >= 0) cells.insert(cells.end(), {cell(device_bytes), cell(device_peak_bytes)});
    lines.push_back(std::move(cells));
  }
}

/// Whether the numbers come from a GPU's allocator.
bool is_on_device(const Comparison& comparison) {
  return comparison.configurations.front().measurement.ranks.front().device_bytes >= 0;
}

/// The modelled DDP of PyTorch.
MemoryBytes pytorch_of(const Comparison& comparison) {
  return pytorch_ddp(comparison.configurations.front().measurement, *comparison.workload.optimizer);
}
/// Bytes per parameter under PyTorch's DDP.
std::string pytorch_bytes(const Comparison& comparison) {
  const int64_t numel = comparison.configurations.front().measurement.parameter_numel;
  return absl::StrFormat(
      "%.4g", static_cast<double>(pytorch_of(comparison).total()) / static_cast<double>(numel));
}

/// Returns the line of the rank with the largest prediction. The line names the rank, unless the
/// prediction is the same for all ranks.
Cells predicted_line(const std::string& configuration, const Measurement& measurement) {
  const size_t largest = largest_rank(measurement);
  const MemoryBytes& peak = measurement.ranks[largest].peak;
  const bool is_of_all = std::all_of(measurement.ranks.begin(), measurement.ranks.end(),
                                     [&peak](const RankMemory& rank) { return rank.peak == peak; });
  Cells cells =
      line_of(configuration,
              is_of_all ? "predicted" : absl::StrCat("predicted, most: rank ", largest), peak);
  cells.push_back(cell(peak.total()));
  return cells;
}

std::vector<Cells> cells_of(const Comparison& comparison) {
  std::vector<Cells> lines;
  Cells head = {"MiB per rank", ""};
  for (const MemoryClass shown : kShown) head.emplace_back(to_string(shown));
  head.insert(head.end(), {"total", "peak", "shared", "PSS"});
  if (is_on_device(comparison)) head.insert(head.end(), {"allocator", "its peak"});
  lines.push_back(std::move(head));
  lines.push_back(line_of(kPyTorch, "modelled", pytorch_of(comparison)));
  for (const auto& [configuration, measurement] : comparison.configurations) {
    lines.push_back(predicted_line(to_string(configuration), measurement));
    append_measured(measurement, lines);
  }
  for (Cells& line : lines) line.resize(lines.front().size());
  return lines;
}

std::string align(const std::vector<Cells>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Cells& line : lines) {
    std::string out;
    for (size_t i = 0; i < line.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      out += i < 2 ? absl::StrFormat("%-*s  ", width, line[i])
                   : absl::StrFormat("%*s  ", width, line[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, out, "\n");
  }
  return text;
}

std::string mark_down(const std::vector<Cells>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&text, "| ", absl::StrJoin(lines[i], " | "), " |\n");
    if (i > 0) continue;
    for (size_t column = 0; column < lines[i].size(); ++column)
      text += column < 2 ? "|---" : "|--:";
    text += "|\n";
  }
  return text;
}

/// Says which configurations differ from the prediction.
std::string outcome(const Comparison& comparison) {
  std::vector<std::string> differing, above;
  int64_t grown = 0;
  for (const auto& [configuration, measurement] : comparison.configurations) {
    if (!is_exact(measurement)) differing.push_back(to_string(configuration));
    for (const RankMemory& rank : measurement.ranks) {
      grown = std::max(grown, rank.unsharded_buffers_added);
      if (peak_of(rank) <= rank.peak.total()) continue;
      if (above.empty() || above.back() != to_string(configuration))
        above.push_back(to_string(configuration));
    }
  }
  std::string text =
      differing.empty()
          ? "Persistent bytes are as predicted, to the byte, in every configuration."
          : absl::StrCat("Persistent bytes are not as predicted: ", absl::StrJoin(differing, ", "),
                         ".");
  if (grown > 0)
    absl::StrAppend(&text, " Unsharded-parameter buffers beyond the planned ones: ", grown, ".");
  if (!above.empty()) {
    absl::StrAppend(&text, " Peaks above the predicted ones: ", absl::StrJoin(above, ", "), ".");
  }
  return text;
}

std::vector<std::string> notes(const Comparison& comparison) {
  int64_t control_bytes = 0;
  for (const auto& [configuration, measurement] : comparison.configurations) {
    for (const RankMemory& rank : measurement.ranks) {
      control_bytes = std::max(control_bytes, rank.held[MemoryClass::kControl]);
    }
  }
  std::vector<std::string> lines = {
      outcome(comparison),
      absl::StrCat(
          "Gradient buffers are pooled (persistent under zero1): predicted for units that ",
          "are reduced one after the other."),
      absl::StrFormat("total: held after the last step; peak: most at once. Both without control "
                      "(votes and other small all-gathers), at most %.2f MiB.",
                      mib(control_bytes)),
      "shared: what the kernel gives for memory that ranks share, on average over these ranks; on "
      "CPUs all but the optimizer's.",
      absl::StrCat(
          "PSS: the whole process (LibTorch, activations, shared pages by share), largest ",
          "of forward, backward and update; ? over MPI, where one process has them all."),
      absl::StrFormat("PyTorch DDP is modelled, not measured: %s bytes per parameter without "
                      "padding: parameter, gradient, its copy in a bucket",
                      pytorch_bytes(comparison)),
      absl::StrFormat("(under gradient buffers; gradient_as_bucket_view is off by default) and "
                      "%s of %s.",
                      comparison.workload.optimizer->states, comparison.workload.optimizer->label)};
  if (is_on_device(comparison)) {
    double error = 0.0;
    for (const auto& [configuration, measurement] : comparison.configurations) {
      error = std::max(error, allocator_error(measurement));
    }
    lines.push_back(
        absl::StrFormat("allocator: what the GPU's gave out beyond what it had before there was an "
                        "engine, after the last step; at most %.2f %% off total and control.",
                        1e2 * error));
    lines.emplace_back(
        "its peak: most in the last step, with activations and gradients in flight.");
  }
  return lines;
}

const RankMemory& largest_of(const Measurement& measurement) {
  return *std::max_element(measurement.ranks.begin(), measurement.ranks.end(),
                           [](const RankMemory& a, const RankMemory& b) {
                             return without_control(a.held).total() <
                                    without_control(b.held).total();
                           });
}

Chart::Bar bar_of(const std::string& label, const MemoryBytes& bytes) {
  Chart::Bar bar;
  bar.label = label;
  for (const MemoryClass shown : kShown) bar.values.push_back(mib(bytes[shown]));
  bar.note = absl::StrFormat("%.1f", mib(without_control(bytes).total()));
  return bar;
}

}  // namespace

std::string describe_model(const Comparison& comparison) {
  const gpt::ModelSizes& sizes = comparison.workload.model;
  const c10::ScalarType dtype = comparison.workload.parameters;
  return absl::StrFormat(
      "GPT with %d layers, width %d, vocabulary %d; %s parameters, %s; %d sequence%s of %d "
      "tokens per rank",
      sizes.layers, sizes.width, sizes.vocabulary,
      dtype == c10::ScalarType::Float ? "fp32" : c10::toString(dtype),
      comparison.workload.optimizer->label, comparison.workload.batch,
      comparison.workload.batch == 1 ? "" : "s", sizes.context);
}

std::string to_table(const Comparison& comparison, TableFormat format) {
  const std::string title = absl::StrFormat(
      "Memory of %.2f M parameters on %d rank%s",
      static_cast<double>(comparison.configurations.front().measurement.parameter_numel) / 1e6,
      comparison.ranks, comparison.ranks == 1 ? "" : "s");
  const std::vector<Cells> cells = cells_of(comparison);
  if (format == TableFormat::kAligned) {
    return absl::StrCat(title, ": ", describe_model(comparison), "\n\n", align(cells), "\n",
                        absl::StrJoin(notes(comparison), "\n"), "\n");
  }
  return absl::StrCat("## ", title, "\n\n", describe_model(comparison), ".\n\n", mark_down(cells),
                      "\n", absl::StrJoin(notes(comparison), "\n"), "\n");
}

Chart to_chart(const Comparison& comparison) {
  Chart chart;
  chart.title = absl::StrFormat(
      "Memory per rank: %.2f M parameters on %d rank%s",
      static_cast<double>(comparison.configurations.front().measurement.parameter_numel) / 1e6,
      comparison.ranks, comparison.ranks == 1 ? "" : "s");
  chart.subtitle = describe_model(comparison);
  chart.axis = "MiB held by the rank that holds most, without activations";
  chart.outline_name = "predicted by the formula";
  chart.hatched_name = "modelled, not measured";
  chart.series = {
      {"parameters", "#3f6ea6", "#6f9fd8"}, {"gradients", "#c7833a", "#d99b55"},
      {"optimizer", "#5f8d6b", "#7fb08c"},  {"unsharded parameters", "#8b6fa8", "#a98fc7"},
      {"root unit", "#c2aed6", "#d3c3e4"},  {"gradient buffers", "#9aa0a6", "#868d94"}};
  chart.bars.push_back(bar_of(kPyTorch, pytorch_of(comparison)));
  chart.bars.back().fill = Chart::Fill::kHatched;
  for (const auto& [configuration, measurement] : comparison.configurations) {
    chart.bars.push_back(bar_of(to_string(configuration), largest_of(measurement).held));
    chart.bars.back().outline = mib(measurement.ranks[largest_rank(measurement)].peak.total());
  }
  chart.footnotes = {
      "zero3:1 keeps units whole after forward; hybrid:p,g,o splits parameters, gradients and",
      absl::StrFormat("optimizer state over p, g and o ranks. PyTorch DDP: %s bytes per parameter "
                      "(parameter,",
                      pytorch_bytes(comparison)),
      absl::StrFormat("gradient, its copy in a bucket, %s).",
                      comparison.workload.optimizer->states)};
  return chart;
}

}  // namespace memory_compare
