#include "tessera/core/comm/mpi/initialize.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/mpi/progress.h"
#include "tessera/errors.h"

namespace tessera::internal::mpi {
namespace {

void require_level(Calls::Level level, const char* source, const char* remedy) {
  TORCH_CHECK(level >= Calls::kSerialized, "[mpi] thread level: got ",
              level == Calls::kSingle ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED", " from ",
              source, ", expected MPI_THREAD_SERIALIZED or above; ", remedy);
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
    require_level(level, calls.library(), "use an MPI that was built for threads");
    return progress.own(calls);
  }
  require_level(level, "the application's MPI_Init",
                "call MPI_Init_thread with MPI_THREAD_SERIALIZED, as a thread of the group's "
                "calls MPI");
  progress.leave_to_application(calls);
}

}  // namespace

void initialize(const Calls& calls, std::chrono::milliseconds timeout, bool may_initialize) {
  const auto job = [kept = &calls, may_initialize] { begin(*kept, may_initialize); };
  if (Progress::instance().run(job, timeout)) return;
  throw CommError(
      {may_initialize ? "init_process_group" : "process_group", "world", -1, -1, "mpi"},
      absl::StrCat("timed out: waited ", timeout.count(), " ms for ",
                   may_initialize
                       ? "MPI_Init_thread, which waits for ranks that have not called it: ps shows "
                         "on their hosts what they do; ranks that have another TESSERA_BACKEND or "
                         "TESSERA_HOST may meet elsewhere"
                       : "the thread that calls MPI, which is in a call of MPI's that has not "
                         "returned"));
}

}  // namespace tessera::internal::mpi
