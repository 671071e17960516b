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

/// Enough ranks to tell the strategies apart.
inline constexpr int kManyRanks = 2;

/// The facts that are known when options are checked: all of them in parallelize(), only the
/// options in validate().
struct OptionCase {
  const Options& options;
  const ParameterTable* model = nullptr;  ///< null if not known, as is `world`
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

/// A row of the table of options: all that Tessera knows of a field of Options, except its effect.
struct OptionField {
  /// The strategies under which it means something; others refuse it.
  enum class Strategies : uint8_t {
    kAll,
    kSplitParameters,   ///< p > 1
    kWholeParameters,   ///< p = 1
    kSharedParameters,  ///< ranks that update different slices can share one copy
    kPooledGradients,   ///< not g = 1 < o, where each unit has its own gradient buffer
    kOwnSlices,         ///< g = o = N: each slice of gradients belongs to one rank
  };
  /// The devices on which it means something.
  enum class Devices : uint8_t {
    kAll,
    kCpu,
    kGpu,
    kHostUpdates,  ///< on a CPU, or on a GPU whose host updates (Options::offload)
  };

  /// Numbers greater than `above`, up to and including `most`.
  struct Range {
    double above;
    double most;
    const char* remedy;  ///< what else to do
  };

  const char* name;
  const char* doc;                            ///< what it does: a sentence without its subject
  const char* allowed;                        ///< its allowed values
  std::optional<Range> range = std::nullopt;  ///< the same of a number, for its check
  std::string (*text)(const Options& options) = nullptr;  ///< never null
  /// Returns its value; null: it is not a number.
  std::optional<double> (*number)(const Options& options) = nullptr;
  Strategies strategies = Strategies::kAll;
  Devices devices = Devices::kAll;
  const char* elsewhere = "";  ///< why other devices refuse it, and what to do
  /// Refuses what else is wrong with its value, for this model and world; null: nothing can be.
  void (*check)(const OptionCase& known, const RefuseOption& refuse) = nullptr;
  /// Sets it from a flag's text; returns "" or what is wrong. Null: only code can set it.
  std::string (*set)(Options& options, const std::string& text) = nullptr;
  /// Returns true if the user has set the option to something that takes effect. Null: if it
  /// differs from the default.
  bool (*asks)(const Options& options) = nullptr;
  bool is_compared = true;  ///< across ranks
};

/// All fields, in the order of Options.
std::span<const OptionField> option_fields();
/// Returns true if `options` ask for something by `field`.
bool asks(const OptionField& field, const Options& options);

/// Two options that exclude each other, and why.
struct OptionPair {
  const char* option;
  const char* other;   ///< a field, or one value of it: "on_non_finite = skip"
  const char* reason;  ///< "<option>: is set beside <other>, which <reason>"
  /// Returns true if `other` is in conflict. Null: if it asks for something.
  bool (*applies)(const Options& options) = nullptr;
};
std::span<const OptionPair> option_pairs();

/// Returns why a strategy, or the device, would ignore `field`, which asks for something; or "".
std::string ignored(const OptionField& field, const OptionCase& known);

/// Returns why the number that `field` holds is out of its range; "" if it is in it, or has none.
std::string out_of_range(const OptionField& field, const Options& options);

/// Returns why `call` ("join") is not allowed under these options: "<call>: got Options::<name>,
/// under which <reason>; <remedy>"; "" if it is allowed. Equal on all ranks.
std::string option_against(const char* call, const ResolvedOptions& options);

}  // namespace tessera::internal
