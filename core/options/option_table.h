#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tessera/core/options/resolved_options.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Ranks of a world that is large enough to tell the strategies apart.
inline constexpr int kManyRanks = 2;

/// What is known where options are judged: everything in parallelize(), the options alone in
/// validate().
struct OptionCase {
  const Options& options;
  const ParameterTable* model = nullptr;  ///< null: not known yet, as `world`
  const WorldTraits* world = nullptr;
  std::string strategy = {};            ///< its name
  std::optional<Degrees> shape = {};    ///< in a world of kManyRanks, or a hybrid's
  std::optional<Degrees> degrees = {};  ///< in `world`

  bool is_on_cpu() const { return world != nullptr && world->can.completes_on_host; }
  bool is_on_gpu() const { return world != nullptr && !world->can.completes_on_host; }
};

/// Takes the reason to refuse a field: "got X; allowed Y; <remedy>", or of a part of it
/// ".<part>: got X; ...".
using RefuseOption = std::function<void(const std::string& reason)>;

/// A row of the table of options: all that Tessera knows of a field of Options but what acts on it.
struct OptionField {
  /// Under which strategies it means something; the others refuse it.
  enum class Strategies : uint8_t {
    kAll,
    kSplitParameters,   ///< p > 1
    kWholeParameters,   ///< p = 1
    kSharedParameters,  ///< where ranks that update different slices can have one copy together
    kPooledGradients,   ///< but for g = 1 < o, where each unit has a gradient buffer of its own
    kOwnSlices,         ///< g = o = N: each slice of gradients belongs to one rank
  };
  /// Where it means something.
  enum class Devices : uint8_t {
    kAll,
    kCpu,
    kGpu,
    kHostUpdates,  ///< on a CPU, or on a GPU whose host updates (Options::offload)
  };

  /// The numbers from `above`, which is none of them, to `most`.
  struct Range {
    double above;
    double most;
    const char* remedy;  ///< what else to do
  };

  const char* name;
  const char* doc;                            ///< what it does, in a sentence without its subject
  const char* allowed;                        ///< its values
  std::optional<Range> range = std::nullopt;  ///< the same, of a number
  std::string (*text)(const Options& options) = nullptr;  ///< never null
  /// Null: it is no number.
  std::optional<double> (*number)(const Options& options) = nullptr;
  Strategies strategies = Strategies::kAll;
  Devices devices = Devices::kAll;
  const char* elsewhere = "";  ///< why it is refused on other devices, and what to do
  /// Refuses what else is wrong with its value, for this model and world; null: nothing can be.
  void (*check)(const OptionCase& known, const RefuseOption& refuse) = nullptr;
  /// Sets it from the text of a flag; "" or what is wrong with that. Null: only code can set it.
  std::string (*set)(Options& options, const std::string& text) = nullptr;
  /// Whether it asks for something; null: it does if it differs from the default.
  bool (*asks)(const Options& options) = nullptr;
  bool is_compared = true;  ///< across ranks
};

/// All fields, in the order of Options.
std::span<const OptionField> option_fields();
/// Whether `options` ask for something by `field`.
bool asks(const OptionField& field, const Options& options);

/// Two options that exclude each other, and why.
struct OptionPair {
  const char* option;
  const char* other;   ///< a field, or one value of it: "on_non_finite = skip"
  const char* reason;  ///< "<option>: is set beside <other>, which <reason>"
  /// Whether the other one stands in the way; null: it does if it asks for something.
  bool (*applies)(const Options& options) = nullptr;
};
std::span<const OptionPair> option_pairs();

/// Why a strategy, or the device, would ignore `field`, which asks for something; "" if neither
/// would.
std::string ignored(const OptionField& field, const OptionCase& known);

/// Why the number that `field` holds is out of its range; "" if it is not, or has none.
std::string out_of_range(const OptionField& field, const Options& options);

/// What forbids `call` ("join") under these options: "<call>: got Options::<name>, under which
/// <reason>; <remedy>"; "" for nothing. The same on all ranks.
std::string option_against(const char* call, const ResolvedOptions& options);

}  // namespace tessera::internal
