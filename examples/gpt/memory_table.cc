#include "tessera/examples/gpt/memory_table.h"

#include <absl/strings/str_format.h>
#include <torch/torch.h>

#include "tessera/core/memory/memory_meter.h"

namespace gpt {
namespace {

using tessera::kMemoryClasses;
using tessera::MemoryBytes;

constexpr const char* kKinds[] = {"predicted", "measured", "peak"};
constexpr int64_t kKindCount = 3;
constexpr auto kColumns = static_cast<int64_t>(kMemoryClasses) + 1;  // classes and total

std::string cell(int64_t bytes) {
  return absl::StrFormat("%11.2f", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string memory_table(const tessera::Engine& engine, int reductions,
                         tessera::ProcessGroup& world) {
  MemoryBytes kinds[kKindCount] = {engine.predicted_memory(reductions), engine.memory().now(),
                                   engine.memory().peak()};
  const int64_t totals[kKindCount] = {kinds[0].total(), kinds[1].total(),
                                      engine.memory().peak_total_bytes()};
  at::Tensor mine = at::zeros({kKindCount * kColumns + 1}, at::kLong);
  for (int64_t kind = 0; kind < kKindCount; ++kind) {
    const at::Tensor row = mine.narrow(0, kind * kColumns, kColumns);
    for (size_t c = 0; c < kMemoryClasses; ++c) {
      row[static_cast<int64_t>(c)] = kinds[kind].by_class[c];
    }
    row[kColumns - 1] = totals[kind];
  }
  mine[-1] = tessera::process_pss_bytes();
  at::Tensor all = at::empty({world.size() * mine.numel()}, at::kLong);
  world.all_gather(all, mine, "memory")->wait();

  std::string table = absl::StrFormat("%-22s", "memory, MiB");
  for (size_t c = 0; c < kMemoryClasses; ++c) {
    const std::string_view name = to_string(static_cast<tessera::MemoryClass>(c));
    table += absl::StrFormat("%11s", std::string(name));
  }
  table += absl::StrFormat("%11s%11s\n", "total", "PSS");
  const std::string strategy(to_string(engine.strategy()));
  for (int rank = 0; rank < world.size(); ++rank) {
    const at::Tensor theirs = all.narrow(0, rank * mine.numel(), mine.numel());
    for (int64_t kind = 0; kind < kKindCount; ++kind) {
      table += absl::StrFormat("%-6s rank %-2d %-9s", strategy, rank, kKinds[kind]);
      for (int64_t c = 0; c < kColumns; ++c) {
        table += cell(theirs[kind * kColumns + c].item<int64_t>());
      }
      const int64_t pss_bytes = theirs[-1].item<int64_t>();
      if (kind == 1 && pss_bytes >= 0) table += cell(pss_bytes);
      table += '\n';
    }
  }
  return table;
}

}  // namespace gpt
