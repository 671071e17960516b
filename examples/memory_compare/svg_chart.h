#pragma once

#include <optional>
#include <string>
#include <vector>

namespace memory_compare {

/// A chart of horizontal stacked bars, one per row, over a linear axis from 0. All texts are plain
/// and are escaped when written.
struct Chart {
  /// One part of every bar.
  struct Series {
    std::string name;
    std::string light;  ///< "#rrggbb" on a white background
    std::string dark;   ///< on a dark background
  };
  enum class Fill { kSolid, kHatched };
  struct Bar {
    std::string label;
    std::vector<double> values;     ///< one per series, at least 0, in the axis's unit
    std::optional<double> outline;  ///< length of the frame around the bar
    std::string note;               ///< text to the right of the bar
    Fill fill = Fill::kSolid;
  };

  std::string title;
  std::string subtitle;
  std::string axis;          ///< what the axis measures, with its unit
  std::string outline_name;  ///< meaning of a frame; empty: not in the legend
  std::string hatched_name;  ///< meaning of hatching; empty: not in the legend
  std::vector<Series> series;
  std::vector<Bar> bars;
  std::vector<std::string> footnotes;  ///< one line each
};

/// Returns the chart as a complete SVG document with its own background and colours for light and
/// dark mode. Texts never overlap: columns are as wide as their longest text at a width that no
/// common sans-serif font exceeds. Throws std::invalid_argument unless every bar has one finite
/// value of at least 0 per series.
std::string to_svg(const Chart& chart);

/// Round numbers from 0 to the first that is not below `largest`, at most `count` + 1 of them.
/// `largest` >= 0 is finite; count >= 1.
std::vector<double> ticks(double largest, int count);

}  // namespace memory_compare
