#include "tessera/core/comm/mpi/initialize.h"

#include <memory>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/errors.h"

namespace tessera::internal::mpi {
namespace {

const char* name_of_level(Calls::Level level) {
  switch (level) {
    case Calls::kSingle:
      return "MPI_THREAD_SINGLE";
    case Calls::kFunneled:
      return "MPI_THREAD_FUNNELED";
    case Calls::kSerialized:
      return "MPI_THREAD_SERIALIZED";
    case Calls::kMultiple:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "none";
  }
}

/// On the progress thread.
void begin(const Calls& calls, bool may_initialize) {
  Progress& progress = Progress::instance();
  Calls::Level level = calls.level();
  TORCH_CHECK(level != Calls::kFinalized,
              "[mpi] state: got an MPI that the application has finalised, expected one that can "
              "be used; make groups before MPI_Finalize");
  if (level == Calls::kNone) {
    TORCH_CHECK(may_initialize,
                "[mpi] state: got an MPI that is not initialised, expected the application to have "
                "done so; call MPI_Init_thread with MPI_THREAD_SERIALIZED first");
    TORCH_CHECK(calls.initialize(&level) == 0, "[mpi] MPI_Init_thread: failed; see what it said");
    TORCH_CHECK(level >= Calls::kSerialized, "[mpi] thread level: got ", name_of_level(level),
                " from ", calls.library(),
                ", expected MPI_THREAD_SERIALIZED or above; use an MPI that was built for threads");
    return progress.own(calls);
  }
  TORCH_CHECK(level >= Calls::kSerialized, "[mpi] thread level: got ", name_of_level(level),
              " from the application's MPI_Init, expected MPI_THREAD_SERIALIZED or above, as a "
              "thread of the group's calls MPI; call MPI_Init_thread with MPI_THREAD_SERIALIZED");
  progress.leave_to_application(calls);
}

bool begins(const Calls& calls, std::chrono::milliseconds timeout, bool may_initialize) {
  const Calls* const kept = &calls;
  return Progress::instance().run([kept, may_initialize] { begin(*kept, may_initialize); },
                                  timeout);
}

/// `function`: what the program has called; `what`: what has not come.
[[noreturn]] void time_out(std::chrono::milliseconds timeout, const char* function,
                           const std::string& what) {
  throw CommError({function, "world", -1, -1, "mpi"},
                  absl::StrCat("timed out: waited ", timeout.count(), " ms for ", what));
}

}  // namespace

void initialize(const Calls& calls, std::chrono::milliseconds timeout,
                const std::function<std::string()>& absent) {
  if (begins(calls, timeout, /*may_initialize=*/true)) return;
  const std::string who = absent();
  time_out(timeout, "init_process_group",
           absl::StrCat("MPI_Init_thread, which waits for ranks that have not called it: ",
                        who.empty() ? "mpirun says which have not started" : who,
                        "; ranks that have another TESSERA_BACKEND or TESSERA_HOST may meet "
                        "elsewhere"));
}

void require_initialized(const Calls& calls, std::chrono::milliseconds timeout) {
  if (begins(calls, timeout, /*may_initialize=*/false)) return;
  time_out(timeout, "process_group",
           "the thread that calls MPI, which is in a call of MPI's that has not returned");
}

}  // namespace tessera::internal::mpi
