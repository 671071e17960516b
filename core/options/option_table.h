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

/// A number of ranks for which no two named strategies have the same degrees.
inline constexpr int kManyRanks = 2;

/// The facts that are known when options are checked: all of them in parallelize(), only `options`
/// in validate().
struct OptionCase {
  const Options& options;
  const ParameterTable* model = nullptr;  ///< null if not known
  const WorldTraits* world = nullptr;     ///< null if not known
  std::string strategy = {};              ///< name of the strategy
  /// The degrees that the strategy has in a world of kManyRanks ranks; for strategy hybrid, the
  /// degrees in `options`.
  std::optional<Degrees> shape = {};
  std::optional<Degrees> degrees = {};  ///< degrees in `world`

  bool is_on_cpu() const { return world != nullptr && world->can.completes_on_host; }
  bool is_on_gpu() const { return world != nullptr && !world->can.completes_on_host; }
};

/// Takes the reason why a field is refused: "got X; allowed Y; <remedy>", or ".<part>: got X; ..."
/// if only one member of the field is wrong.
using RefuseOption = std::function<void(const std::string& reason)>;

/// A row of the option table: everything about a field of Options except its effect.
struct OptionField {
  /// The strategies under which the option has an effect; others refuse it.
  enum class Strategies : uint8_t {
    kAll,
    kSplitParameters,   ///< p > 1
    kWholeParameters,   ///< p = 1
    kSharedParameters,  ///< ranks that update different slices can share one copy of the parameters
    /// All degrees except g = 1 < o, under which each unit has a gradient buffer of its own.
    kPooledGradients,
    kOwnSlices,  ///< g = o = N: each slice of gradients belongs to one rank
  };
  /// The devices on which the option has an effect.
  enum class Devices : uint8_t {
    kAll,
    kCpu,
    kGpu,
    kHostUpdates,  ///< on a CPU, or on a GPU if the host updates parameters (Options::offload)
  };

  /// Allows numbers above `above`, up to and including `most`.
  struct Range {
    double above;
    double most;
    const char* remedy;  ///< what to do instead
  };

  const char* name;
  const char* doc;      ///< effect of the option: a sentence without a subject
  const char* allowed;  ///< the allowed values
  std::optional<Range> range = std::nullopt;  ///< the allowed range of a number
  /// Returns the value of the field as text; never null.
  std::string (*text)(const Options& options) = nullptr;
  /// Returns the value of the field; null if it is not a number.
  std::optional<double> (*number)(const Options& options) = nullptr;
  Strategies strategies = Strategies::kAll;
  Devices devices = Devices::kAll;
  const char* elsewhere = "";  ///< why other devices refuse the option, and what to do
  /// Refuses other invalid values, for this model and world. Null: no other check is needed.
  void (*check)(const OptionCase& known, const RefuseOption& refuse) = nullptr;
  /// Sets the field from a flag's text; returns "" or what is wrong. Null: only code can set it.
  std::string (*set)(Options& options, const std::string& text) = nullptr;
  /// Returns true if the user asks for something by setting the option. Null: every value but the
  /// default asks for something.
  bool (*asks)(const Options& options) = nullptr;
  bool is_compared = true;  ///< compared across ranks
};

/// All fields, in the order of Options.
std::span<const OptionField> option_fields();
/// Returns true if the value of `field` in `options` asks for something, which the strategy or the
/// device may still ignore (ignored()).
bool asks(const OptionField& field, const Options& options);

/// Two options that exclude each other, with the reason.
struct OptionPair {
  const char* option;
  const char* other;   ///< a field, or one value of it: "on_non_finite = skip"
  const char* reason;  ///< the end of the error "<option>: is set beside <other>, which <reason>"
  /// Returns true if `options` set `other` in a way that conflicts with `option`. Null: `other`
  /// conflicts if asks() is true of it.
  bool (*applies)(const Options& options) = nullptr;
};
std::span<const OptionPair> option_pairs();

/// Returns why the strategy or the device would ignore `field`; "" if neither would. asks() must be
/// true of the field.
std::string ignored(const OptionField& field, const OptionCase& known);

/// Returns why the number in `field` is out of range; "" if it is in range, or the field has no
/// range or is not set.
std::string out_of_range(const OptionField& field, const Options& options);

/// Returns why `call` (such as "join") is not allowed under these options: "<call>: got
/// Options::<name>, under which <reason>; <remedy>"; "" if it is allowed. Equal on all ranks.
std::string option_against(const char* call, const ResolvedOptions& options);

}  // namespace tessera::internal
