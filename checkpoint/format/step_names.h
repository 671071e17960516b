#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::internal {

// Names in the directory of a run:
//   lock                               held by the job that saves here
//   lock.held                          replaces "lock" if the file system has no locks
//   probe-<nonce>                      a short-lived test that files can be written and seen here
//   step-100/                          a committed step
//     manifest.json
//     rank-00000-of-00004.safetensors
//   step-120.tmp-<nonce>/              a step being written, or left by a job that died
//   step-80.trash-<nonce>/             a step being deleted
//   step-60.damaged-<nonce>/           a step that was set aside; also "step-60.replaced-<nonce>"

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kLockName = "lock";
inline constexpr const char* kTemporary = "tmp";
inline constexpr const char* kTrash = "trash";
inline constexpr int64_t kMaxRanks = 100'000;

std::string step_name(int64_t step);
/// Returns "step-<N>.<mark>-<nonce>", which is not a step's name.
std::string marked_step_name(int64_t step, std::string_view mark, std::string_view nonce);
std::string rank_file_name(int64_t rank, int64_t world);

/// Returns the step number in `name`; nothing if `name` is not exactly the name of a committed
/// step's directory.
std::optional<int64_t> step_of(std::string_view name);
/// Returns the mark if `name` is a marked_step_name(), "" if it is a step_name(), otherwise
/// nothing.
std::optional<std::string_view> step_mark_of(std::string_view name);

/// Draws 32 random hexadecimal digits, which identify the files of one save.
std::string draw_nonce();
bool is_nonce(std::string_view text);

}  // namespace tessera::internal
