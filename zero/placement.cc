#include "tessera/zero/placement.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/ddp/reduce_groups.h"

namespace tessera {

Degrees placement(const Options& options, int world_size) {
  switch (options.strategy) {
    case Strategy::kDdp:
      return {.parameters = 1, .gradients = 1, .optimizer = 1};
    case Strategy::kZero1:
      return {.parameters = 1, .gradients = 1, .optimizer = world_size};
    case Strategy::kZero2:
      return {.parameters = 1, .gradients = world_size, .optimizer = world_size};
    case Strategy::kZero3:
      return {.parameters = world_size, .gradients = world_size, .optimizer = world_size};
    case Strategy::kHybrid:
      TORCH_CHECK(options.degrees.has_value(),
                  "[zero] degrees: got none, strategy hybrid needs them");
      return SliceMap(*options.degrees, world_size, /*rank=*/0).degrees();
  }
  TORCH_INTERNAL_ASSERT(false, "strategy ", static_cast<int>(options.strategy));
}

bool splits_parameters(const Options& options) {
  constexpr int kManyRanks = 2;
  return options.degrees.has_value() ? options.degrees->parameters > 1
                                     : options.strategy != Strategy::kHybrid &&
                                           placement(options, kManyRanks).parameters > 1;
}

int ranks_after_forward(const Options& options, const Degrees& degrees) {
  const int all = degrees.parameters;
  if (!options.reshard_after_forward.has_value() || all == 1) return all;
  const int ranks = *options.reshard_after_forward;
  TORCH_CHECK(ranks >= 1 && all % ranks == 0, "[zero] reshard_after_forward: got ", ranks,
              ", expected a divisor of the ", all,
              " ranks that parameters are split over; 1 keeps units whole, leave it out to free "
              "them");
  return ranks;
}

ParameterStore::Setting store_setting(const Options& options, const Degrees& degrees,
                                      int ranks_after_forward) {
  const bool is_split =
      degrees.parameters > 1 || options.free_eagerly || options.offload == Offload::kParameters;
  return {.residence = is_split ? Residence::kSplit : Residence::kResident,
          .share = options.share_parameters,
          .offload = options.offload,
          .gather = {.ranks_after_forward = ranks_after_forward,
                     .free_eagerly = options.free_eagerly,
                     .strict_slabs = options.strict_slabs,
                     .poison_freed = options.poison_freed,
                     .is_inside_backward = nullptr,
                     .streams = nullptr}};
}

std::string ignored_option(const Options& options) {
  if (splits_parameters(options)) return "";
  const char* name = nullptr;
  if (options.wrap.choose) name = "wrap";
  if (options.reshard_after_forward.has_value()) name = "reshard_after_forward";
  if (options.prefetch.has_value()) name = "prefetch";
  if (options.free_eagerly) name = "free_eagerly";
  if (options.strict_slabs) name = "strict_slabs";
  if (name == nullptr) return "";
  return absl::StrCat(
      "[options] ", name, ": is set, but strategy ", std::string(to_string(options.strategy)),
      " does not split parameters and would ignore it; leave it out, or use a strategy that "
      "does (zero3)");
}

std::string problem_of_second_shards(const Options& options, const Degrees& degrees,
                                     const ProcessGroup& world) {
  const int all = degrees.parameters;
  const int ranks = options.reshard_after_forward.value_or(1);
  if (world.has_windows() || all == 1 || ranks == 1 || ranks == all) return "";
  return absl::StrCat("[options] reshard_after_forward: got ", ranks, ", expected 1 or the ", all,
                      " ranks that parameters are split over, because ranks of backend '",
                      std::string(world.backend()),
                      "' cannot read each other's memory; leave it out");
}

namespace {

void check_graphs(const Options& options, at::Device place, int world_size,
                  std::vector<std::string>& problems) {
  const auto refuse = [&problems](const auto&... reason) {
    problems.push_back(
        absl::StrCat("[options] cuda_graphs: is set, but ", reason..., "; leave it out"));
  };
  if (place.is_cpu()) refuse("parameters lie on the CPU");
  if (world_size > 1) {
    refuse("collectives are not captured, and there are ", world_size, " ranks");
  }
  if (options.free_eagerly || options.offload == Offload::kParameters) {
    refuse("units come and go (free_eagerly, offload), which the host decides");
  }
  if (options.offload == Offload::kOptimizer) {
    refuse("gradients leave for the host in backward (offload)");
  }
}

}  // namespace

std::vector<std::string> problems_of_place(const Options& options, const Degrees& degrees,
                                           at::Device place, int world_size) {
  std::vector<std::string> problems;
  if (options.offload != Offload::kNone && place.is_cpu()) {
    problems.emplace_back(
        "[options] offload: is set, but parameters lie on the CPU, where everything is in the "
        "host's memory; leave it out, or train on a GPU");
  }
  if (options.offload == Offload::kParameters && !splits_parameters(options)) {
    problems.push_back(absl::StrCat("[options] offload: got parameters, but strategy ",
                                    std::string(to_string(options.strategy)),
                                    " keeps them whole at all times; use a strategy that splits "
                                    "them (zero3), or offload the optimizer only"));
  }
  if (options.offload == Offload::kParameters && degrees.optimizer > degrees.parameters) {
    problems.push_back(absl::StrCat(
        "[options] offload: got parameters, but degrees ", to_string(degrees),
        " let a rank update a part of what it keeps of the parameters only, which the others' "
        "devices cannot take from its host; split parameters over as many ranks as the optimizer, "
        "or offload the optimizer only"));
  }
  if (options.optimizer_in_backward && !place.is_cpu()) {
    problems.emplace_back(
        "[options] optimizer_in_backward: is set, but works on a CPU only; leave it out");
  }
  if (options.cuda_graphs) check_graphs(options, place, world_size, problems);
  if (!options.late_verdict.value_or(false)) return problems;
  if (place.is_cpu()) {
    problems.emplace_back(
        "[options] late_verdict: is true, but on a CPU a step waits for nothing that could be "
        "left for later; leave it out");
  }
  if (keeps_partial_sums(degrees)) {
    problems.push_back(absl::StrCat("[options] late_verdict: is true, but degrees ",
                                    to_string(degrees),
                                    " keep partial sums, for which ranks wait for each other in "
                                    "step(); leave it out"));
  }
  return problems;
}

bool has_late_verdict(const Options& options, const Degrees& degrees, at::Device place) {
  return options.late_verdict.value_or(!place.is_cpu() && options.offload == Offload::kNone &&
                                       !options.ask_non_finite && !keeps_partial_sums(degrees));
}

std::string problem_of_early_update(const Options& options, const Degrees& degrees,
                                    int world_size) {
  if (!options.optimizer_in_backward) return "";
  // A named strategy is refused in a world of one too, where its degrees say nothing.
  const bool is_alone = world_size == 1 && !options.degrees.has_value();
  const int ranks = is_alone ? 2 : world_size;
  const Degrees row = is_alone ? placement(options, ranks) : degrees;
  if (row.gradients == ranks && row.optimizer == ranks) return "";
  return absl::StrCat(
      "[options] optimizer_in_backward: is set, but strategy ",
      std::string(to_string(options.strategy)), " splits gradients over ", degrees.gradients,
      " and the optimizer over ", degrees.optimizer, " of ", world_size,
      " ranks, and backward can update only what all of them have reduced for one; leave it out, "
      "or use a strategy that splits both over all ranks (zero2, zero3)");
}

}  // namespace tessera
