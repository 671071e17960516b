#pragma once

#include <string>
#include <vector>

#include "tessera/examples/memory_compare/configuration.h"
#include "tessera/examples/memory_compare/measurement.h"
#include "tessera/examples/memory_compare/svg_chart.h"

namespace memory_compare {

/// A configuration and its memory.
struct Compared {
  Configuration configuration;
  Measurement measurement;
};

/// All that was compared. At least one configuration.
struct Comparison {
  Workload workload;
  int ranks = 1;
  std::vector<Compared> configurations;
};

enum class TableFormat {
  kAligned,   ///< for a terminal
  kMarkdown,  ///< with a heading and the notes as a list
};

/// Returns a table of MiB by class: a line for PyTorch's DDP as pytorch_ddp() models it, then for
/// every configuration the prediction and the measurement, with ranks that hold the same bytes in
/// one line. Notes explain the columns and say whether measured and predicted bytes agree.
std::string to_table(const Comparison& comparison, TableFormat format);

/// Returns the same as a chart. Each configuration has a bar, divided by class, for the rank that
/// held most, in a frame as long as the prediction.
Chart to_chart(const Comparison& comparison);

/// Returns a line on the model and the batch, for the table and the chart: "GPT with 6 layers,
/// ...".
std::string describe_model(const Comparison& comparison);

}  // namespace memory_compare
