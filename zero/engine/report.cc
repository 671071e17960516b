#include "tessera/report.h"

#include <cstdio>
#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

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

Json json_of(const Degrees& degrees) {
  return {{"parameters", degrees.parameters},
          {"gradients", degrees.gradients},
          {"optimizer", degrees.optimizer}};
}

Json json_of(const Report::Model& model) {
  Json bytes_by_dtype = Json::object();
  for (const auto& [dtype, bytes] : model.bytes_by_dtype) bytes_by_dtype[dtype] = bytes;
  return {{"type", model.type},
          {"parameters", model.parameters},
          {"elements", model.elements},
          {"bytes", model.bytes},
          {"trained", model.trained},
          {"trained_elements", model.trained_elements},
          {"trained_bytes", model.trained_bytes},
          {"bytes_by_dtype", std::move(bytes_by_dtype)},
          {"buffers", model.buffers},
          {"buffer_bytes", model.buffer_bytes}};
}

Json json_of(const Report::Unit& unit) {
  return {{"name", unit.name},
          {"kind", to_string(unit.kind)},
          {"parameters", unit.parameters},
          {"elements", unit.elements},
          {"dtype", unit.dtype},
          {"bytes", unit.bytes},
          {"communication_dtype", unit.communication_dtype},
          {"communication_bytes", unit.communication_bytes}};
}

Json json_of(const StepResult& step) {
  return {{"committed", step.committed}, {"step", step.step},
          {"grad_norm", step.grad_norm}, {"loss_scale", step.loss_scale},
          {"weight", step.weight},       {"used_parameters", step.used_parameters}};
}

Json json_of(const Report::Times& times) {
  return {{"sampled_steps", times.sampled_steps},
          {"forward", times.forward},
          {"backward", times.backward},
          {"communication", times.communication},
          {"overlap", times.overlap},
          {"update", times.update},
          {"communicated_bytes", times.communicated_bytes}};
}

Json json_of(const std::optional<Report::Hook>& hook) {
  if (!hook.has_value()) return nullptr;
  return {{"name", hook->name}, {"settings", hook->settings}, {"bytes", hook->bytes}};
}

Json json_of(const GatherCounts& counts) {
  return {{"gathers", counts.gathers},
          {"prefetched", counts.prefetched},
          {"frees", counts.frees},
          {"bytes", counts.bytes},
          {"unsharded_buffers_added", counts.unsharded_buffers_added}};
}

Json json_of(const MemoryBytes& bytes) {
  Json json;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    json[std::string(to_string(memory_class))] = bytes[memory_class];
  }
  json["total"] = bytes.total();
  return json;
}

Json json_of(const Report::Memory& memory) {
  return {{"now", json_of(memory.now)},
          {"peak", json_of(memory.peak)},
          {"peak_total", memory.peak_total},
          {"micro_steps", memory.micro_steps},
          {"predicted", json_of(memory.predicted)},
          {"predicted_peak", json_of(memory.predicted_peak)}};
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
  Json options = Json::object();
  for (const auto& [name, value] : report.options) options[name] = value;
  Json units = Json::array();
  for (const Report::Unit& unit : report.units) units.push_back(json_of(unit));
  const Json json = {{"strategy", tessera::to_string(report.strategy)},
                     {"degrees", json_of(report.degrees)},
                     {"options", std::move(options)},
                     {"rank", report.rank},
                     {"world", report.world},
                     {"backend", report.backend},
                     {"device", report.device},
                     {"model", json_of(report.model)},
                     {"units", std::move(units)},
                     {"steps", report.steps},
                     {"last_step", json_of(report.last_step)},
                     {"unused_parameters", report.unused_parameters},
                     {"unused_bytes", report.unused_bytes},
                     {"times", json_of(report.times)},
                     {"comm_hook", json_of(report.comm_hook)},
                     {"gathers", json_of(report.gathers)},
                     {"memory", json_of(report.memory)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_text(const Report& report) {
  std::string out = absl::StrCat(
      to_absl(tessera::to_string(report.strategy)), " (degrees ",
      tessera::to_string(report.degrees), "), rank ", report.rank, " of ", report.world, " over ",
      report.backend, " on ", report.device, "\n", report.model.type, ": ", report.model.parameters,
      " parameters of ", report.model.elements, " elements, ", size_text(report.model.bytes),
      "; trained: ", report.model.trained, ", ", size_text(report.model.trained_bytes), "; ",
      report.model.buffers, " buffers, ", size_text(report.model.buffer_bytes), "\noptions: ");
  absl::StrAppend(&out, absl::StrJoin(report.options, ", ", absl::PairFormatter(" ")), "\n");
  append_lines(out, report.units);
  absl::StrAppend(
      &out, report.steps, " steps; unused in the last one: ",
      report.unused_parameters.empty() ? "nothing" : absl::StrJoin(report.unused_parameters, ", "),
      "\n");
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
