#include "tessera/report.h"

#include <cstdio>
#include <string_view>

#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/json_text.h"

namespace tessera {
using namespace internal;

namespace {

std::string_view to_string(UnitKind kind) {
  switch (kind) {
    case UnitKind::kPlain:
      return "plain";
    case UnitKind::kRoot:
      return "root";
    case UnitKind::kFrozen:
      return "frozen";
  }
  return "";
}

/// A JSON object or array as its members come.
class JsonScope {
 public:
  JsonScope(std::string& out, char open, char close) : out_(out), close_(close) { out_ += open; }
  ~JsonScope() { out_ += close_; }
  JsonScope(const JsonScope&) = delete;
  JsonScope& operator=(const JsonScope&) = delete;

  /// What is appended next is an element.
  std::string& next() {
    if (!is_first_) out_ += ',';
    is_first_ = false;
    return out_;
  }
  std::string& key(std::string_view name) {
    append_json_string(next(), name);
    return out_ += ':';
  }
  void add(std::string_view name, std::string_view value) { append_json_string(key(name), value); }
  void add(std::string_view name, const char* value) { add(name, std::string_view(value)); }
  void add(std::string_view name, const std::string& value) { add(name, std::string_view(value)); }
  void add(std::string_view name, int64_t value) { absl::StrAppend(&key(name), value); }
  void add(std::string_view name, int value) { add(name, int64_t{value}); }
  void add(std::string_view name, bool value) { key(name) += value ? "true" : "false"; }
  void add(std::string_view name, double value) { key(name) += json_number(value); }

 private:
  std::string& out_;
  const char close_;
  bool is_first_ = true;
};

struct JsonObject : JsonScope {
  explicit JsonObject(std::string& out) : JsonScope(out, '{', '}') {}
};
struct JsonArray : JsonScope {
  explicit JsonArray(std::string& out) : JsonScope(out, '[', ']') {}
};

void append_names(std::string& out, const std::vector<std::string>& names) {
  JsonArray array(out);
  for (const std::string& name : names) append_json_string(array.next(), name);
}

void append(std::string& out, const Degrees& degrees) {
  JsonObject object(out);
  object.add("parameters", degrees.parameters);
  object.add("gradients", degrees.gradients);
  object.add("optimizer", degrees.optimizer);
}

void append(std::string& out, const Report::Model& model) {
  JsonObject object(out);
  object.add("type", model.type);
  object.add("parameters", model.parameters);
  object.add("elements", model.elements);
  object.add("bytes", model.bytes);
  object.add("trained", model.trained);
  object.add("trained_elements", model.trained_elements);
  object.add("trained_bytes", model.trained_bytes);
  {
    JsonObject dtypes(object.key("bytes_by_dtype"));
    for (const auto& [dtype, bytes] : model.bytes_by_dtype) dtypes.add(dtype, bytes);
  }
  object.add("buffers", model.buffers);
  object.add("buffer_bytes", model.buffer_bytes);
}

void append(std::string& out, const Report::Unit& unit) {
  JsonObject object(out);
  object.add("name", unit.name);
  object.add("kind", to_string(unit.kind));
  append_names(object.key("parameters"), unit.parameters);
  object.add("elements", unit.elements);
  object.add("dtype", unit.dtype);
  object.add("bytes", unit.bytes);
  object.add("communication_dtype", unit.communication_dtype);
  object.add("communication_bytes", unit.communication_bytes);
}

void append(std::string& out, const StepResult& step) {
  JsonObject object(out);
  object.add("committed", step.committed);
  object.add("step", step.step);
  object.add("grad_norm", step.grad_norm);
  object.add("loss_scale", step.loss_scale);
  object.add("weight", step.weight);
  object.add("used_parameters", step.used_parameters);
}

void append(std::string& out, const Report::Times& times) {
  JsonObject object(out);
  object.add("sampled_steps", times.sampled_steps);
  object.add("forward", times.forward);
  object.add("backward", times.backward);
  object.add("communication", times.communication);
  object.add("overlap", times.overlap);
  object.add("update", times.update);
  object.add("communicated_bytes", times.communicated_bytes);
}

void append(std::string& out, const Report::Hook& hook) {
  JsonObject object(out);
  object.add("name", hook.name);
  object.add("settings", hook.settings);
  object.add("bytes", hook.bytes);
}

void append(std::string& out, const GatherCounts& counts) {
  JsonObject object(out);
  object.add("gathers", counts.gathers);
  object.add("prefetched", counts.prefetched);
  object.add("frees", counts.frees);
  object.add("bytes", counts.bytes);
  object.add("unsharded_buffers_added", counts.unsharded_buffers_added);
}

void append(std::string& out, const MemoryBytes& bytes) {
  JsonObject object(out);
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    object.add(to_string(memory_class), bytes[memory_class]);
  }
  object.add("total", bytes.total());
}

void append(std::string& out, const Report::Memory& memory) {
  JsonObject object(out);
  append(object.key("now"), memory.now);
  append(object.key("peak"), memory.peak);
  object.add("peak_total", memory.peak_total);
  object.add("micro_steps", memory.micro_steps);
  append(object.key("predicted"), memory.predicted);
  append(object.key("predicted_peak"), memory.predicted_peak);
}

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string size_text(double bytes) {
  if (bytes < 10240) return formatted("%.0f B", bytes);
  return bytes < (10 << 20) ? formatted("%.1f KiB", bytes / 1024)
                            : formatted("%.1f MiB", bytes / (1 << 20));
}
std::string size_text(int64_t bytes) { return size_text(static_cast<double>(bytes)); }

std::string milliseconds(double seconds) { return formatted("%.3f ms", seconds * 1e3); }

absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }

void append_lines(std::string& out, const std::vector<Report::Unit>& units) {
  absl::StrAppend(&out, "units:\n");
  for (const Report::Unit& unit : units) {
    absl::StrAppend(&out, "  ", unit.name, " (", to_absl(to_string(unit.kind)),
                    "): ", unit.parameters.size(), " parameters, ", size_text(unit.bytes), " of ",
                    unit.dtype);
    if (unit.communication_bytes > 0) {
      absl::StrAppend(&out, ", reduced as ", size_text(unit.communication_bytes), " of ",
                      unit.communication_dtype);
    }
    out += '\n';
  }
}

void append_lines(std::string& out, const Report::Times& times) {
  absl::StrAppend(&out, "mean of ", times.sampled_steps, " sampled steps: forward ",
                  milliseconds(times.forward), ", backward ", milliseconds(times.backward),
                  ", communication ", milliseconds(times.communication), " of which ",
                  milliseconds(times.overlap), " beside backward, update ",
                  milliseconds(times.update),
                  "; gradients communicated: ", size_text(times.communicated_bytes), "\n");
}

void append_lines(std::string& out, const Report::Memory& memory) {
  absl::StrAppend(&out, "memory (predicted for ", memory.micro_steps, " reductions per step):\n");
  const auto line = [&](std::string_view name, int64_t now, int64_t peak, int64_t predicted) {
    out += formatted("  %-22s %12s now %12s at peak %12s predicted\n", std::string(name).c_str(),
                     size_text(now).c_str(), size_text(peak).c_str(), size_text(predicted).c_str());
  };
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    line(to_string(memory_class), memory.now[memory_class], memory.peak[memory_class],
         memory.predicted_peak[memory_class]);
  }
  line("total", memory.now.total(), memory.peak_total, memory.predicted_peak.total());
}

}  // namespace

std::string to_json(const Report& report) {
  std::string out;
  {
    JsonObject object(out);
    object.add("strategy", tessera::to_string(report.strategy));
    append(object.key("degrees"), report.degrees);
    {
      JsonObject options(object.key("options"));
      for (const auto& [name, value] : report.options) options.add(name, value);
    }
    object.add("rank", report.rank);
    object.add("world", report.world);
    object.add("backend", report.backend);
    object.add("device", report.device);
    append(object.key("model"), report.model);
    {
      JsonArray units(object.key("units"));
      for (const Report::Unit& unit : report.units) append(units.next(), unit);
    }
    object.add("steps", report.steps);
    append(object.key("last_step"), report.last_step);
    append_names(object.key("unused_parameters"), report.unused_parameters);
    object.add("unused_bytes", report.unused_bytes);
    append(object.key("times"), report.times);
    std::string& hook = object.key("comm_hook");
    if (report.comm_hook.has_value()) {
      append(hook, *report.comm_hook);
    } else {
      hook += "null";
    }
    append(object.key("gathers"), report.gathers);
    append(object.key("memory"), report.memory);
  }
  return out;
}

std::string to_text(const Report& report) {
  std::string out = absl::StrCat(
      to_absl(tessera::to_string(report.strategy)), " (degrees ",
      tessera::to_string(report.degrees), "), rank ", report.rank, " of ", report.world, " over ",
      report.backend, " on ", report.device, "\n", report.model.type, ": ", report.model.parameters,
      " parameters of ", report.model.elements, " elements, ", size_text(report.model.bytes),
      "; trained: ", report.model.trained, ", ", size_text(report.model.trained_bytes), "; ",
      report.model.buffers, " buffers, ", size_text(report.model.buffer_bytes), "\noptions:");
  std::string_view separator = " ";
  for (const auto& [name, value] : report.options) {
    absl::StrAppend(&out, to_absl(separator), name, " ", value);
    separator = ", ";
  }
  out += '\n';
  append_lines(out, report.units);
  absl::StrAppend(&out, report.steps, " steps; unused in the last one: ");
  if (report.unused_parameters.empty()) out += "nothing";
  separator = "";
  for (const std::string& name : report.unused_parameters) {
    absl::StrAppend(&out, to_absl(separator), name);
    separator = ", ";
  }
  out += '\n';
  append_lines(out, report.times);
  if (report.comm_hook.has_value()) {
    absl::StrAppend(&out, "communication hook ", report.comm_hook->name, " ",
                    report.comm_hook->settings, ", holds ", size_text(report.comm_hook->bytes),
                    "\n");
  }
  absl::StrAppend(&out, "gathered: ", report.gathers.gathers, " units, ",
                  size_text(report.gathers.bytes), "; freed: ", report.gathers.frees, "\n");
  append_lines(out, report.memory);
  return out;
}

}  // namespace tessera
