#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::mpi {

/// The bits of an MPI_Comm or MPI_Request, whichever type these are in the MPI library.
using Handle = uint64_t;

/// The functions of an MPI library that Tessera calls, independent of its ABI: a table that code
/// with an mpi.h fills (mpi_functions.h). All but the first four functions return 0 or MPI's error
/// code. All communication is non-blocking. Sizes are in bytes and may exceed 2^31.
struct Calls {
  /// Version of this struct; raised whenever the struct changes.
  static constexpr int kVersion = 2;
  static constexpr int kAnySource = -1;
  /// MPI's thread levels. kNone: MPI is not initialised; kFinalized: it has been finalised.
  enum Level : int { kFinalized = -2, kNone = -1, kSingle, kFunneled, kSerialized, kMultiple };

  int version;
  const char* (*library)();  ///< MPI's version text: "Open MPI v4.1.4, ..."
  Level (*level)();
  Handle (*world)();
  void (*abort)(Handle comm, int code);  ///< ends every process of `comm`

  /// Initialises MPI, asking for kSerialized; sets *got to the level that MPI gives.
  int (*initialize)(Level* got);
  int (*finalize)();
  /// Makes MPI call `callback` at the beginning of MPI_Finalize.
  int (*before_finalize)(void (*callback)());
  /// Starts to duplicate `comm` into `*made`, which must stay at its address until `*request` is
  /// complete. Collective, does not block.
  int (*duplicate)(Handle comm, Handle* made, Handle* request);
  int (*release)(Handle* comm);
  int (*rank)(Handle comm, int* rank);
  int (*size)(Handle comm, int* size);
  int (*largest_tag)(Handle comm, int* tag);

  int (*send)(const void* data, size_t bytes, int to, int tag, Handle comm, Handle* request);
  int (*receive)(void* data, size_t bytes, int from, int tag, Handle comm, Handle* request);
  /// Sets `is_over` to non-zero if the request is complete, else to 0. For a complete receive also
  /// sets `source`, the sender's rank.
  int (*test)(Handle* request, int* is_over, int* source);
  /// Cancels a receive that has not begun; test() must be called until the request is complete.
  int (*cancel)(Handle* request);
  int (*error_text)(int code, char* text, size_t bytes);
};

}  // namespace tessera::mpi
