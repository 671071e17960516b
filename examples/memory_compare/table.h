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

/// A table of MiB by class: for every configuration the prediction and the measurement, ranks that
/// hold the same bytes in one line, and the model of PyTorch's DDP. Notes explain the columns and
/// say whether measured and predicted bytes agree.
std::string to_table(const Comparison& comparison, TableFormat format);

/// The same as a chart: for each configuration a bar by class, of the rank that held most, in a
/// frame as long as the prediction.
Chart to_chart(const Comparison& comparison);

/// "19.08 M parameters", "6 layers, ...": for the heading and the chart.
std::string describe_model(const Comparison& comparison);

}  // namespace memory_compare
