#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/setting.h"

namespace tessera::internal::testing {

/// Longer than any test waits, so a fault that only the groups' time-out ends fails its test.
inline constexpr std::chrono::seconds kGroupTimeout = 4 * kPatience;
/// For faults that only a time-out ends. Sanitizers make everything slower.
inline constexpr std::chrono::milliseconds kShortTimeout =
    std::chrono::milliseconds(kPatience) / 24;

/// How a rank ended, or what some code threw.
struct Ending {
  enum class Kind : uint8_t { kFine, kMisuse, kComm, kOther };
  Kind kind = Kind::kFine;
  std::string text;  ///< without backtrace; for a CommError only its cause, which ranks share
};

/// An operator whose parameter could not be gathered throws LibTorch's own type with the
/// CommError's text. Returns that text's cause; "" for any other error.
inline std::string cause_in(const std::string& text) {
  if (text.rfind("[comm] ", 0) != 0) return "";
  const size_t rank = text.find(", rank ");
  const size_t colon = rank == std::string::npos ? rank : text.find(": ", rank);
  return colon == std::string::npos ? "" : text.substr(colon + 2);
}

inline std::ostream& operator<<(std::ostream& out, const Ending& outcome) {
  switch (outcome.kind) {
    case Ending::Kind::kFine:
      return out << "no error";
    case Ending::Kind::kMisuse:
      return out << "c10::Error \"" << outcome.text << "\"";
    case Ending::Kind::kComm:
      return out << "CommError \"" << outcome.text << "\"";
    case Ending::Kind::kOther:
      break;
  }
  return out << "exception \"" << outcome.text << "\"";
}

template <typename Body>
Ending outcome_of(Body&& body) {
  try {
    body();
  } catch (const CommError& error) {
    return {Ending::Kind::kComm, error.cause()};
  } catch (const c10::Error& error) {
    const std::string cause = cause_in(error.what_without_backtrace());
    if (!cause.empty()) return {Ending::Kind::kComm, cause};
    return {Ending::Kind::kMisuse, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Ending::Kind::kOther, error.what()};
  }
  return {};
}

/// Runs `body` on rank threads; returns how each rank ended. An exception leaves `body` uncaught,
/// as in a program. If ranks exceed the deadline, the test program prints the state of each and
/// ends.
inline std::vector<Ending> outcomes_of_ranks(
    int size, const RankBody& body,
    ProcessGroupOptions::Lane lane = ProcessGroupOptions::Lane::kInline,
    std::chrono::milliseconds timeout = kGroupTimeout,
    std::chrono::milliseconds deadline = kPatience) {
  std::vector<Ending> outcomes(static_cast<size_t>(size));
  RankThreadOptions options;
  options.timeout = timeout;
  options.deadline = deadline;
  options.lane = lane;
  run_ranks(
      size,
      [&](std::shared_ptr<ProcessGroup> world) {
        const auto rank = static_cast<size_t>(world->rank());
        outcomes[rank] = outcome_of([&] { body(std::move(world)); });
      },
      options);
  return outcomes;
}

/// Every rank ended with an error of `kind` and the same text, which contains each of `parts`.
MATCHER_P2(EveryRankThrows, kind, parts, "") {
  if (arg.empty()) return false;
  for (size_t rank = 0; rank < arg.size(); ++rank) {
    if (arg[rank].kind != kind || arg[rank].text != arg[0].text) {
      *result_listener << "rank " << rank << " differs in kind, or in text from rank 0";
      return false;
    }
  }
  for (const std::string& part : parts) {
    if (arg[0].text.find(part) != std::string::npos) continue;
    *result_listener << "no \"" << part << "\" in it";
    return false;
  }
  return true;
}

using Parts = std::vector<std::string>;

inline auto every_rank_refuses(const Parts& parts) {
  return EveryRankThrows(Ending::Kind::kMisuse, parts);
}
inline auto every_rank_loses_contact(const Parts& parts) {
  return EveryRankThrows(Ending::Kind::kComm, parts);
}

inline auto is_misuse(const std::string& part) {
  return ::testing::AllOf(::testing::Field(&Ending::kind, Ending::Kind::kMisuse),
                          ::testing::Field(&Ending::text, ::testing::HasSubstr(part)));
}
inline auto is_comm_error(const std::string& part) {
  return ::testing::AllOf(::testing::Field(&Ending::kind, Ending::Kind::kComm),
                          ::testing::Field(&Ending::text, ::testing::HasSubstr(part)));
}
inline auto is_other(const std::string& part) {
  return ::testing::AllOf(::testing::Field(&Ending::kind, Ending::Kind::kOther),
                          ::testing::Field(&Ending::text, ::testing::HasSubstr(part)));
}
inline auto is_fine() { return ::testing::Field(&Ending::kind, Ending::Kind::kFine); }

/// The ranks that do something wrong.
enum class Who : uint8_t { kEveryRank, kFirstRank, kLastRank };
inline constexpr Who kAnyone[] = {Who::kEveryRank, Who::kFirstRank, Who::kLastRank};
inline constexpr Who kOneRank[] = {Who::kFirstRank, Who::kLastRank};

inline bool is_among(Who who, int rank, int size) {
  return who == Who::kEveryRank || rank == (who == Who::kFirstRank ? 0 : size - 1);
}
inline bool is_among(Who who, ProcessGroup& world) {
  return is_among(who, world.rank(), world.size());
}
/// "rank 2" for the first of them.
inline std::string first_of(Who who, int size) {
  return absl::StrCat("rank ", who == Who::kLastRank ? size - 1 : 0);
}
/// As refuse_on_all_ranks() names them.
inline std::string refusers(Who who, int size) {
  return who == Who::kEveryRank && size > 1 ? "all ranks" : first_of(who, size);
}
inline std::ostream& operator<<(std::ostream& out, Who who) {
  switch (who) {
    case Who::kEveryRank:
      return out << "every rank";
    case Who::kFirstRank:
      return out << "the first rank";
    case Who::kLastRank:
      break;
  }
  return out << "the last rank";
}

/// Every named configuration at every size, and at the largest size also with collectives in their
/// own thread; HSDP on four ranks. Filtered by `suits`, if given.
inline std::vector<Setting> settings(const std::vector<int>& sizes, Suits suits = nullptr) {
  std::vector<Setting> all;
  size_t turn = 0;
  for (const Configuration& configuration : named_configurations()) {
    // Without all rows: each configuration in the largest world, every second one with a
    // communication thread, and every third one also in a smaller world.
    const size_t others = sizes.size() - 1;
    for (size_t i = 0; i < others; ++i) {
      const bool has_turn = turn % 3 == 0 && i == turn / 3 % others;
      if (takes_all_rows() || has_turn) all.push_back({configuration, sizes[i]});
    }
    const bool has_thread = turn % 2 == 1;
    if (takes_all_rows() || !has_thread) all.push_back({configuration, sizes.back()});
    if (takes_all_rows() || has_thread) {
      all.push_back({configuration, sizes.back(), ProcessGroupOptions::Lane::kThread});
    }
    ++turn;
  }
  all.push_back({hybrid(2, 2, 2), 4});
  std::erase_if(
      all, [suits](const Setting& setting) { return suits != nullptr && !(setting.*suits)(); });
  return all;
}

class ConfigurationAndWorld : public ::testing::TestWithParam<Setting> {
 protected:
  int size() const { return GetParam().size; }
  const Configuration& configuration() const { return GetParam().configuration; }
  bool has_whole_gradients() const { return GetParam().has_whole_gradients(); }
  bool splits_parameters() const { return GetParam().splits_parameters(); }
  /// The name, in quotes, of the unit of Trainer's model that is reduced first.
  std::string first_unit() const { return splits_parameters() ? "'second'" : "'bucket 0'"; }
  /// The same after the first backward, which completes this one first
  /// (Options::reorder_reductions).
  std::string first_complete_unit() const { return splits_parameters() ? "'root'" : "'bucket 2'"; }
};

}  // namespace tessera::internal::testing
