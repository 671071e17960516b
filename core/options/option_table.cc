#include "tessera/core/options/option_table.h"

#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/options/option_checks.h"
#include "tessera/core/options/option_text.h"

namespace tessera::internal {
namespace {

using Strategies = OptionField::Strategies;
using Devices = OptionField::Devices;

template <auto kField>
std::string text(const Options& options) {
  return option_text::text_of(options.*kField);
}

using option_text::take;
template <typename Value>
auto take(const std::string& given, std::optional<Value>& value)
    -> decltype(take(given, value.emplace())) {
  if (given != "unset") return take(given, value.emplace());
  value.reset();
  return "";
}

template <auto kField>
std::string set(Options& options, const std::string& given) {
  auto value = options.*kField;
  const std::string wrong = take(given, value);
  if (wrong.empty()) options.*kField = value;
  return wrong;
}

template <auto kField>
std::optional<double> number(const Options& options) {
  const std::optional value = options.*kField;
  return value.has_value() ? std::optional<double>(*value) : std::nullopt;
}

/// Completes `row` for the field `kField`. The field can be set from text if take() knows its type.
template <auto kField>
constexpr OptionField of(OptionField row) {
  using Value = decltype(std::optional(Options().*kField))::value_type;
  row.text = text<kField>;
  if constexpr (std::is_arithmetic_v<Value>) row.number = number<kField>;
  if constexpr (requires(Options options) { take(std::string(), options.*kField); }) {
    row.set = set<kField>;
  }
  return row;
}

// --- The table ---

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr const char* kGpuNorms =
    "the kernels of a GPU take the 2-norm of all gradients only; leave it out, or set offload, "
    "which clips on the host";

// A new option needs a field of Options, a row here, a resolved value if it may be unset, and the
// code that implements it.
constexpr OptionField kFields[] = {
    of<&Options::strategy>({.name = "strategy",
                            .doc = "how the state of training is spread over ranks",
                            .allowed = "ddp, zero1, zero2, zero3 (or fsdp), hybrid"}),
    of<&Options::degrees>({.name = "degrees",
                           .doc = "p,g,o of the strategy hybrid: over how many ranks parameters, "
                                  "gradients and optimizer state are split",
                           .allowed = "p divides g divides o divides the ranks",
                           .check = check_degrees}),
    of<&Options::wrap>({.name = "wrap",
                        .doc = "which modules are units of their own",
                        .allowed = "a WrapPolicy",
                        .strategies = Strategies::kSplitParameters,
                        .check = check_wrap}),
    of<&Options::reshard_after_forward>({.name = "reshard_after_forward",
                                         .doc = "over how many ranks a unit stays split between "
                                                "its forward and its backward; 1 keeps it whole",
                                         .allowed = "a divisor of p",
                                         .strategies = Strategies::kSplitParameters,
                                         .check = check_reshard}),
    of<&Options::ignores>({.name = "ignores",
                           .doc = "which parameters are left to the program",
                           .allowed = "a predicate on names",
                           .check = check_ignores,
                           .is_compared = false}),  // trained parameters are compared instead
    of<&Options::max_grad_norm>(
        {.name = "max_grad_norm",
         .doc = "the largest norm of all gradients; larger ones are scaled down to it",
         .allowed = "(0, infinity]",
         .range = {{0, kInfinity, kNoClipping}}}),
    of<&Options::grad_norm_type>({.name = "grad_norm_type",
                                  .doc = "the p of that norm",
                                  .allowed = "(0, infinity]",
                                  .range = {{0, kInfinity, "leave it out for the 2-norm"}},
                                  .devices = Devices::kHostUpdates,
                                  .elsewhere = kGpuNorms}),
    of<&Options::max_grad_norm_by_group>(
        {.name = "max_grad_norm_by_group",
         .doc = "the largest norm of each group's gradients, by the group's name",
         .allowed = "(0, infinity] each",
         .devices = Devices::kHostUpdates,
         .elsewhere = kGpuNorms,
         .check = check_group_norms}),
    of<&Options::max_grad_value>(
        {.name = "max_grad_value",
         .doc = "the largest magnitude of an element of the gradients; larger ones are clamped",
         .allowed = "(0, infinity]",
         .range = {{0, kInfinity, kNoClipping}},
         .devices = Devices::kHostUpdates,
         .elsewhere = "the kernels of a GPU do not clip by value; leave it out, or set offload, "
                      "which clips on the host"}),
    of<&Options::gradient_divide_factor>(
        {.name = "gradient_divide_factor",
         .doc = "what sums of gradients over ranks are divided by instead of the number of ranks",
         .allowed = "1.2e-38 to 3.4e38; on a GPU the number of ranks",
         .check = check_divide_factor}),
    of<&Options::reproducible>(
        {.name = "reproducible",
         .doc = "between which numbers of ranks gradients have the same bits",
         .allowed = "one world size, any world size",
         .devices = Devices::kCpu,
         .elsewhere =
             "parameters lie on a GPU, where neither sums nor kernels keep an order; leave it out",
         .check = check_reproducible}),
    of<&Options::precision>(
        {.name = "precision",
         .doc = "the dtypes of parameters, of what is sent, of sums and of masters",
         .allowed = "Float, Double, BFloat16, Half each",
         .check = check_precision}),
    of<&Options::loss_scale>({.name = "loss_scale",
                              .doc = "scales the loss dynamically, for fp16",
                              .allowed = "a LossScale; as text its first scale",
                              .check = check_loss_scale}),
    of<&Options::on_non_finite>({.name = "on_non_finite",
                                 .doc = "what a step does with gradients that are NaN or infinite",
                                 .allowed = "stop, skip"}),
    of<&Options::ask_non_finite>({.name = "ask_non_finite",
                                  .doc = "decides that case by case",
                                  .allowed = "a function of a NonFiniteReport"}),
    of<&Options::average>(
        {.name = "average",
         .doc = "keeps an average of the weights (EMA, SWA)",
         .allowed = "a WeightAverage; as text its decay, or mean",
         .devices = Devices::kHostUpdates,
         .elsewhere = "the parameters are updated on a GPU, which has no kernel for it; set "
                      "offload to update on the host, or leave it out",
         .check = check_average}),
    of<&Options::buffers>({.name = "buffers",
                           .doc = "what each step does with the model's buffers",
                           .allowed = "once, broadcast, mean"}),
    of<&Options::ignores_buffers>({.name = "ignores_buffers",
                                   .doc = "which buffers are left to the program",
                                   .allowed = "a predicate on names",
                                   .is_compared = false}),  // synced buffers are compared instead
    of<&Options::requires_sync_batch_norm>(
        {.name = "requires_sync_batch_norm",
         .doc = "refuses a model with a BatchNorm whose statistics are those of one rank's samples",
         .allowed = "true, false"}),
    of<&Options::share_parameters>(
        {.name = "share_parameters",
         .doc = "lets the ranks of one host share one copy of the parameters",
         .allowed = "true, false",
         .strategies = Strategies::kSharedParameters}),
    of<&Options::optimizer_in_backward>(
        {.name = "optimizer_in_backward",
         .doc = "updates each unit inside backward, as soon as its gradient is reduced",
         .allowed = "true, false",
         .strategies = Strategies::kOwnSlices,
         .devices = Devices::kCpu,
         .elsewhere = "works on a CPU only; leave it out"}),
    of<&Options::bucket_bytes>(
        {.name = "bucket_bytes",
         .doc = "bytes of parameters per bucket, in the order in which backward completes them",
         .allowed = "1 KiB to 2 GiB each",
         .strategies = Strategies::kWholeParameters,
         .check = check_bucket_bytes}),
    of<&Options::reorder_reductions>(
        {.name = "reorder_reductions",
         .doc = "reduces in the order in which the first backward completed the gradients",
         .allowed = "true, false"}),
    of<&Options::units_in_reduction>(
        {.name = "units_in_reduction",
         .doc =
             "of how many units gradients may lie in memory between autograd and their reduction",
         .allowed = "1 to 1024",
         .range = {{0, 1024, "the default suits most models"}},
         .strategies = Strategies::kPooledGradients}),
    of<&Options::prefetch>({.name = "prefetch",
                            .doc = "gathers the next unit while the present one computes",
                            .allowed = "true, false",
                            .strategies = Strategies::kSplitParameters}),
    of<&Options::keep_freed_memory>(
        {.name = "keep_freed_memory",
         .doc = "keeps the memory that tensors free instead of returning it to the kernel",
         .allowed = "true, false"}),
    of<&Options::offload>(
        {.name = "offload",
         .doc = "what lies in the host's memory while a GPU trains, and is updated there",
         .allowed = "none, optimizer, parameters (where p = o > 1)",
         .devices = Devices::kGpu,
         .elsewhere = "parameters lie on the CPU, where everything is in the host's memory; leave "
                      "it out, or train on a GPU",
         .check = check_offload}),
    of<&Options::asynchronous_step>(
        {.name = "asynchronous_step",
         .doc = "lets step() return before a GPU has made it",
         .allowed = "true (unless 1 < g < o), false",
         .devices = Devices::kGpu,
         .elsewhere = "parameters lie on the CPU, where steps are synchronous; leave it out",
         .check = check_asynchronous_step,
         .asks = is_asynchronous}),
    of<&Options::cuda_graphs>({.name = "cuda_graphs",
                               .doc = "lets micro_step() capture what a GPU is given and replay it",
                               .allowed = "true (in a world of one), false",
                               .devices = Devices::kGpu,
                               .elsewhere = "parameters lie on the CPU; leave it out",
                               .check = check_cuda_graphs}),
    of<&Options::poison_freed>(
        {.name = "poison_freed",
         .doc = "fills freed buffers with NaN, so that a read at the wrong time shows",
         .allowed = "true, false"}),
    of<&Options::free_eagerly>({.name = "free_eagerly",
                                .doc = "keeps a unit whole only while an operator uses it",
                                .allowed = "true, false",
                                .strategies = Strategies::kSplitParameters}),
    of<&Options::fixed_unsharded_buffers>(
        {.name = "fixed_unsharded_buffers",
         .doc = "makes it an error to gather a unit while no buffer is free",
         .allowed = "true, false",
         .strategies = Strategies::kSplitParameters}),
    of<&Options::trace>(
        {.name = "trace", .doc = "records what the engine does when", .allowed = "true, false"}),
};

bool skips_non_finite(const Options& options) { return options.on_non_finite == NonFinite::kSkip; }

constexpr OptionPair kPairs[] = {
    {"max_grad_norm_by_group", "max_grad_norm", "clips all gradients by one norm"},
    {"on_non_finite", "ask_non_finite", "decides instead"},
    {"reproducible", "loss_scale",
     "skips a step when a rank's gradients overflow, and that depends on the number of "
     "micro-steps"},
    {"reproducible", "buffers", "spreads what forwards of each rank have written"},
    // optimizer_in_backward excludes options that need all gradients of a step before the first
    // update, or that may skip updates.
    {"optimizer_in_backward", "offload", "updates in step()"},
    {"optimizer_in_backward", "max_grad_norm",
     "needs the norm of all gradients before the first update"},
    {"optimizer_in_backward", "max_grad_norm_by_group",
     "needs norms of all gradients before the first update"},
    {"optimizer_in_backward", "max_grad_value", "clips in step()"},
    {"optimizer_in_backward", "grad_norm_type", "is of the norm that step() takes"},
    {"optimizer_in_backward", "loss_scale",
     "leaves out the update of a step whose gradients overflow"},
    {"optimizer_in_backward", "ask_non_finite",
     "may leave out the update of a step that is partly made"},
    {"optimizer_in_backward", "on_non_finite = skip",
     "leaves out the update of a step that is partly made", skips_non_finite},
    // asynchronous_step excludes options under which the host acts in the middle of a step, because
    // the step would wait for the host.
    {"asynchronous_step", "ask_non_finite", "is asked before anything is applied"},
    {"asynchronous_step", "offload", "updates on the CPU, in the step"},
    // cuda_graphs excludes options under which the host acts in the middle of a captured part.
    {"cuda_graphs", "free_eagerly", "gathers and frees units from the host"},
    {"cuda_graphs", "offload", "copies gradients to the host in backward"},
};

// --- Calls ---

struct CallRefusal {
  const char* call;
  const char* option;
  bool (*applies)(const ResolvedOptions& options);
  const char* reason;
  const char* remedy = "set it to false";
};

bool is_any_world_size(const ResolvedOptions& options) {
  return options.reproducible == Reproducible::kAnyWorldSize;
}
bool updates_in_backward(const ResolvedOptions& options) { return options.optimizer_in_backward; }
bool is_late(const ResolvedOptions& options) { return options.asynchronous_step; }
bool is_captured(const ResolvedOptions& options) { return options.cuda_graphs; }

constexpr const char* kLeaveOneOut = "leave one of the two out";
constexpr const char* kEarlyUse = "gradients are used before all weights of the step are known";

constexpr CallRefusal kCalls[] = {
    {"no_sync", "reproducible", is_any_world_size,
     "micro-batches are added over ranks before they are added over micro-steps", kLeaveOneOut},
    {"backward with a weight", "reproducible", is_any_world_size,
     "all micro-batches count the same: products with weights, and their sum, are rounded",
     kLeaveOneOut},
    {"backward with a weight", "optimizer_in_backward", updates_in_backward, kEarlyUse},
    {"backward with a weight", "asynchronous_step", is_late, kEarlyUse},
    {"backward with a weight", "cuda_graphs", is_captured, kEarlyUse},
    {"join", "reproducible", is_any_world_size, "all ranks have equally many batches",
     kLeaveOneOut},
    {"join", "asynchronous_step", is_late, "a rank without batches cannot follow a step"},
    {"join", "cuda_graphs", is_captured, "a rank without batches cannot follow a micro-step"},
    {"register_comm_hook", "reproducible", is_any_world_size,
     "gradients are added in one order over ranks and micro-steps, which a hook does not keep",
     kLeaveOneOut},
};

// --- What would be ignored ---

std::string ignored_by_strategy(const OptionField& field, const OptionCase& known) {
  const Degrees& shape = *known.shape;
  const bool is_split = shape.parameters > 1;
  const std::string but = absl::StrCat("is set, but strategy ", known.strategy);
  switch (field.strategies) {
    case Strategies::kAll:
      return "";
    case Strategies::kSplitParameters:
      if (is_split) return "";
      return absl::StrCat(but,
                          " does not split parameters and would ignore it; leave it out, or use a "
                          "strategy that does (zero3)");
    case Strategies::kWholeParameters:
      if (!is_split) return "";
      return absl::StrCat(but,
                          " splits parameters, forms units by wrap and would ignore it; leave it "
                          "out, or use a strategy that keeps parameters whole (ddp, zero1, zero2)");
    case Strategies::kSharedParameters:
      if (can_share_parameters(shape)) return "";
      return absl::StrCat("got ", field.text(known.options), ", but strategy ", known.strategy,
                          " has nothing that ranks could share and would ignore it; leave it out");
    case Strategies::kPooledGradients:
      if (!keeps_gradient_buffers(shape)) return "";
      return absl::StrCat(but,
                          " has a gradient buffer for each unit and would ignore it; leave it out");
    case Strategies::kOwnSlices:
      break;
  }
  // For a named strategy `shape` has the degrees in a world of kManyRanks, so that the answer is
  // the same in a world of one rank.
  const bool is_named = known.options.strategy != Strategy::kHybrid;
  const int ranks = is_named ? kManyRanks : known.world != nullptr ? known.world->size : 0;
  if (ranks == 0 || (shape.gradients == ranks && shape.optimizer == ranks)) return "";
  return absl::StrCat(
      but,
      known.degrees.has_value()
          ? absl::StrCat(" splits gradients over ", known.degrees->gradients,
                         " and the optimizer over ", known.degrees->optimizer, " of ",
                         known.world->size, " ranks")
          : std::string(" does not split gradients and the optimizer over all ranks"),
      ", and backward can update only slices that belong to one rank; leave it out, or use a "
      "strategy that splits both over all ranks (zero2, zero3)");
}

bool is_refused_by_device(const OptionField& field, const OptionCase& known) {
  switch (field.devices) {
    case Devices::kAll:
      return false;
    case Devices::kCpu:
      return known.is_on_gpu();
    case Devices::kGpu:
      return known.is_on_cpu();
    case Devices::kHostUpdates:
      return known.is_on_gpu() && known.options.offload == Offload::kNone;
  }
  TORCH_INTERNAL_ASSERT(false, "devices ", static_cast<int>(field.devices));
}

}  // namespace

std::span<const OptionField> option_fields() { return kFields; }
std::span<const OptionPair> option_pairs() { return kPairs; }

bool asks(const OptionField& field, const Options& options) {
  static const Options defaults;
  return field.asks != nullptr ? field.asks(options) : field.text(options) != field.text(defaults);
}

std::string ignored(const OptionField& field, const OptionCase& known) {
  if (known.shape.has_value()) {
    if (std::string by_strategy = ignored_by_strategy(field, known); !by_strategy.empty()) {
      return by_strategy;
    }
  }
  return is_refused_by_device(field, known) ? absl::StrCat("is set, but ", field.elsewhere) : "";
}

std::string out_of_range(const OptionField& field, const Options& options) {
  if (!field.range.has_value()) return "";
  const auto [above, most, remedy] = *field.range;
  const std::optional<double> value = field.number(options);
  if (!value.has_value() || (*value > above && *value <= most)) return "";  // NaN is out of range
  return absl::StrCat("got ", field.text(options), "; allowed ", field.allowed, "; ", remedy);
}

std::string option_against(const char* call, const ResolvedOptions& options) {
  for (const CallRefusal& row : kCalls) {
    if (std::string_view(row.call) != call || !row.applies(options)) continue;
    return absl::StrCat(call, ": got Options::", row.option, ", under which ", row.reason, "; ",
                        row.remedy);
  }
  return "";
}

std::vector<std::string> lines(const Options& options) {
  std::vector<std::string> lines;
  for (const OptionField& field : kFields) {
    if (field.is_compared) lines.push_back(absl::StrCat(field.name, " ", field.text(options)));
  }
  return lines;
}

}  // namespace tessera::internal
