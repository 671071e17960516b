#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// A backend whose windows are under test: runs ranks that are threads of this process.
struct WindowBackend {
  using Body = std::function<void(std::shared_ptr<ProcessGroup>)>;

  std::vector<int> world_sizes;
  /// Throws the error of a rank.
  std::function<void(int size, const Body&)> run;
  /// Returns each rank's error, or "".
  std::function<std::vector<std::string>(int size, const Body&)> run_expecting_errors = nullptr;
};

/// The content of rank `rank` in round `round`: neighbouring elements, ranks and rounds differ.
at::Tensor window_content(int rank, int round, int64_t numel, at::ScalarType dtype);

/// Reads a part of a rank's buffer, as "unit", into a new tensor.
at::Tensor read_new(Window& window, int rank, int64_t begin, int64_t numel,
                    at::ScalarType dtype = at::kFloat);

/// Every rank reads the content that all wrote to `own`, whole and in part, twice. Collective.
void check_window_reads(ProcessGroup& group, const at::Tensor& own);

/// Each test compares with closed forms, in the backend's world sizes or in one that it needs.
void test_window_reads(const WindowBackend& backend);
void test_reads_started_together(const WindowBackend& backend);
void test_own_reads_that_overlap(const WindowBackend& backend);
void test_owner_that_takes_no_part(const WindowBackend& backend);
void test_readers_beside_collectives(const WindowBackend& backend);
void test_words(const WindowBackend& backend);
void test_ranks_of_the_group(const WindowBackend& backend);

void test_window_differences(const WindowBackend& backend);
void test_window_misuse(const WindowBackend& backend);
void test_failures_end_reads(const WindowBackend& backend);
void test_windows_outlive_groups(const WindowBackend& backend);
void test_windows_do_not_keep_ranks(const WindowBackend& backend);

}  // namespace tessera::internal::testing
