#pragma once

#include <string>
#include <vector>

#include "tessera/examples/memory_compare/configuration.h"
#include "tessera/examples/memory_compare/measurement.h"
#include "tessera/examples/memory_compare/svg_chart.h"

namespace memory_compare {

/// A configuration and what it took.
struct Compared {
  Configuration configuration;
  Measurement measurement;
};

/// Everything that was compared. At least one configuration.
struct Comparison {
  Workload workload;
  int ranks = 1;
  std::vector<Compared> configurations;
};

enum class TableFormat {
  kAligned,   ///< for a terminal
  kMarkdown,  ///< with a heading and the notes as a list
};

/// MiB by class: for every configuration what the formulas predict and what was measured, ranks
/// that hold the same bytes in one line, and the modelled configuration of PyTorch's DDP; notes say
/// what the columns mean and whether measured and predicted bytes agree.
std::string to_table(const Comparison& comparison, TableFormat format);

/// The same as a chart: a bar by class for each configuration, of the rank that held most, in the
/// frame of what is predicted.
Chart to_chart(const Comparison& comparison);

/// "19.08 M parameters", "6 layers, ...": what the heading and the chart say.
std::string describe_model(const Comparison& comparison);

}  // namespace memory_compare
