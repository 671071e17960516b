#include "tessera/examples/memory_compare/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace memory_compare {
namespace {

// In pixels; the document scales.
constexpr double kMargin = 24;
constexpr double kGap = 12;  // between columns
constexpr double kPlotWidth = 560;
constexpr double kRowHeight = 34;
constexpr double kBarHeight = 18;
constexpr double kFrameHeight = 24;
constexpr double kLineHeight = 20;
constexpr double kSwatch = 12;
constexpr double kTitleSize = 17;
constexpr double kTextSize = 13;
constexpr int kTicks = 6;

/// Returns an upper bound of the width: no usual sans-serif font has wider glyphs on average.
double width_of(const std::string& text, double size) {
  return 0.62 * size * static_cast<double>(text.size());
}

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

enum class Anchor { kStart, kMiddle, kEnd };

/// Writes the elements one after the other.
class Drawing {
 public:
  void text(double x, double y, const std::string& text, const char* style,
            Anchor anchor = Anchor::kStart) {
    const char* anchors[] = {"start", "middle", "end"};
    absl::StrAppendFormat(&svg_, "  <text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
                          style, x, y, anchors[static_cast<int>(anchor)]);
    absl::StrAppend(&svg_, escape(text), "</text>\n");
  }
  /// A viewer shows `tip` when the rectangle is pointed at.
  void rectangle(double x, double y, double width, double height, const std::string& style,
                 const std::string& tip = "") {
    absl::StrAppendFormat(
        &svg_, "  <rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", style,
        x, y, width, height);
    if (tip.empty()) {
      svg_ += "/>\n";
    } else {
      absl::StrAppend(&svg_, "><title>", escape(tip), "</title></rect>\n");
    }
  }
  void vertical(double x, double from, double to, const char* style) {
    absl::StrAppendFormat(
        &svg_, "  <line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x,
        from, x, to);
  }
  const std::string& svg() const { return svg_; }

 private:
  std::string svg_;
};

void check(const Chart& chart) {
  for (const Chart::Bar& bar : chart.bars) {
    bool is_good = bar.values.size() == chart.series.size();
    for (const double value : bar.values) is_good &= std::isfinite(value) && value >= 0;
    is_good &= !bar.outline.has_value() || (std::isfinite(*bar.outline) && *bar.outline >= 0);
    if (!is_good) {
      throw std::invalid_argument(absl::StrCat("[chart] bar '", bar.label,
                                               "': expected one finite value of at least 0 per "
                                               "series"));
    }
  }
}

double length_of(const Chart::Bar& bar) {
  return std::accumulate(bar.values.begin(), bar.values.end(), 0.0);
}

std::string style_sheet(const Chart& chart) {
  std::string css = absl::StrFormat(
      "    text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif;"
      " font-size: %gpx; fill: #24292f; }\n"
      "    .title { font-size: %gpx; font-weight: 600; }\n"
      "    .quiet { fill: #57606a; }\n"
      "    .ground { fill: #ffffff; }\n"
      "    .grid { stroke: #d8dee4; stroke-width: 1; }\n"
      "    .axis { stroke: #57606a; stroke-width: 1; }\n"
      "    .frame { fill: none; stroke: #24292f; stroke-width: 1.2; }\n"
      "    .hatch { fill: url(#hatch); }\n"
      "    .stroke { stroke: #ffffff; stroke-width: 3; }\n",
      kTextSize, kTitleSize);
  std::string dark =
      "      text { fill: #e6edf3; }\n"
      "      .quiet { fill: #9aa4ae; }\n"
      "      .ground { fill: #0d1117; }\n"
      "      .grid { stroke: #30363d; }\n"
      "      .axis { stroke: #9aa4ae; }\n"
      "      .frame { stroke: #e6edf3; }\n"
      "      .stroke { stroke: #0d1117; }\n";
  for (size_t i = 0; i < chart.series.size(); ++i) {
    absl::StrAppendFormat(&css, "    .part%d { fill: %s; }\n", i, chart.series[i].light);
    absl::StrAppendFormat(&dark, "      .part%d { fill: %s; }\n", i, chart.series[i].dark);
  }
  return absl::StrCat("  <style>\n", css, "    @media (prefers-color-scheme: dark) {\n", dark,
                      "    }\n  </style>\n");
}

/// Draws the legend in lines no longer than `width`; returns the y below it.
double draw_legend(const Chart& chart, double width, double y, Drawing& drawing) {
  double x = kMargin;
  const auto entry = [&](const std::string& name, const auto& draw_swatch) {
    const double entry_width = kSwatch + 6 + width_of(name, kTextSize) + kGap;
    if (x > kMargin && x + entry_width > kMargin + width) {
      x = kMargin;
      y += kLineHeight;
    }
    draw_swatch(x, y - kSwatch + 1.5);
    drawing.text(x + kSwatch + 6, y, name, "quiet");
    x += entry_width;
  };
  for (size_t i = 0; i < chart.series.size(); ++i) {
    entry(chart.series[i].name, [&](double left, double top) {
      drawing.rectangle(left, top, kSwatch, kSwatch, absl::StrCat("part", i));
    });
  }
  if (!chart.outline_name.empty()) {
    entry(chart.outline_name, [&](double left, double top) {
      drawing.rectangle(left, top, kSwatch, kSwatch, "frame");
    });
  }
  if (!chart.hatched_name.empty()) {
    entry(chart.hatched_name, [&](double left, double top) {
      drawing.rectangle(left, top, kSwatch, kSwatch, chart.series.empty() ? "frame" : "part0");
      drawing.rectangle(left, top, kSwatch, kSwatch, "hatch");
    });
  }
  return y;
}

void draw_bar(const Chart& chart, const Chart::Bar& bar, double left, double middle, double scale,
              Drawing& drawing) {
  double x = left;
  for (size_t i = 0; i < bar.values.size(); ++i) {
    if (bar.values[i] == 0) continue;
    const double width = bar.values[i] * scale;
    drawing.rectangle(
        x, middle - kBarHeight / 2, width, kBarHeight, absl::StrCat("part", i),
        absl::StrFormat("%s, %s: %.2f", bar.label, chart.series[i].name, bar.values[i]));
    x += width;
  }
  if (bar.fill == Chart::Fill::kHatched) {
    drawing.rectangle(left, middle - kBarHeight / 2, x - left, kBarHeight, "hatch");
  }
  double end = x;
  if (bar.outline.has_value()) {
    const double width = *bar.outline * scale;
    drawing.rectangle(left, middle - kFrameHeight / 2, width, kFrameHeight, "frame");
    end = std::max(end, left + width);
  }
  // Hides the grid behind the note.
  drawing.rectangle(end + 4, middle - kTextSize / 2, width_of(bar.note, kTextSize) * 0.9, kTextSize,
                    "ground");
  drawing.text(end + 8, middle + kTextSize * 0.35, bar.note, "plain");
}

}  // namespace

std::vector<double> ticks(double largest, int count) {
  if (largest <= 0) return {0.0, 1.0};
  const double power = std::pow(10.0, std::floor(std::log10(largest / count)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (std::ceil(largest / step - 1e-9) <= count) break;
  }
  std::vector<double> values = {0.0};
  while (values.back() < largest * (1 - 1e-9)) {
    values.push_back(static_cast<double>(values.size()) * step);
  }
  return values;
}

std::string to_svg(const Chart& chart) {
  check(chart);
  double largest = 0, label_width = 0, note_width = 0;
  for (const Chart::Bar& bar : chart.bars) {
    largest = std::max({largest, length_of(bar), bar.outline.value_or(0)});
    label_width = std::max(label_width, width_of(bar.label, kTextSize));
    note_width = std::max(note_width, width_of(bar.note, kTextSize));
  }
  const std::vector<double> marks = ticks(largest, kTicks);
  const double scale = kPlotWidth / marks.back();
  const double left = kMargin + label_width + kGap;
  double inner = label_width + kGap + kPlotWidth + kGap + note_width;
  inner = std::max({inner, width_of(chart.title, kTitleSize), width_of(chart.subtitle, kTextSize)});
  for (const std::string& line : chart.footnotes) {
    inner = std::max(inner, width_of(line, kTextSize));
  }

  Drawing drawing;
  double y = kMargin + kTitleSize;
  drawing.text(kMargin, y, chart.title, "title");
  y += kLineHeight + 2;
  drawing.text(kMargin, y, chart.subtitle, "quiet");
  y = draw_legend(chart, inner, y + kLineHeight + 8, drawing);

  const double top = y + kGap;
  const double bottom = top + kRowHeight * static_cast<double>(chart.bars.size());
  for (const double mark : marks) {
    const double x = left + mark * scale;
    drawing.vertical(x, top, bottom, mark == 0 ? "axis" : "grid");
    drawing.text(x, bottom + 18, absl::StrFormat("%g", mark), "quiet", Anchor::kMiddle);
  }
  drawing.text(left + kPlotWidth / 2, bottom + 18 + kLineHeight, chart.axis, "quiet",
               Anchor::kMiddle);
  for (size_t row = 0; row < chart.bars.size(); ++row) {
    const double middle = top + kRowHeight * (static_cast<double>(row) + 0.5);
    drawing.text(left - kGap, middle + kTextSize * 0.35, chart.bars[row].label, "plain",
                 Anchor::kEnd);
    draw_bar(chart, chart.bars[row], left, middle, scale, drawing);
  }
  y = bottom + 18 + kLineHeight + kGap;
  for (const std::string& line : chart.footnotes) {
    y += kLineHeight;
    drawing.text(kMargin, y, line, "quiet");
  }

  const double width = inner + 2 * kMargin;
  const double height = y + kMargin;
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                      "width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
                      width, height, width, height),
      "  <title>", escape(chart.title), "</title>\n  <desc>", escape(chart.subtitle), "</desc>\n",
      style_sheet(chart),
      "  <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><line class=\"stroke\" x1=\"0\" y1=\"0\" x2=\"0\" "
      "y2=\"6\"/></pattern></defs>\n",
      absl::StrFormat("  <rect class=\"ground\" x=\"0\" y=\"0\" width=\"%.0f\" height=\"%.0f\"/>\n",
                      width, height),
      drawing.svg(), "</svg>\n");
}

}  // namespace memory_compare
