#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::mpi {

/// An MPI_Comm or MPI_Request of whichever MPI, as bits.
using Handle = uint64_t;

/// The functions of an MPI library that Tessera calls, independent of its ABI: a table that code
/// with an mpi.h fills (mpi_functions.h). All but the first four functions return 0 or MPI's error
/// code. Only non-blocking communication; sizes are bytes and may exceed 2^31.
struct Calls {
  /// Raised with every change of this struct.
  static constexpr int kVersion = 2;
  static constexpr int kAnySource = -1;
  /// Thread levels, and two other states.
  enum Level : int { kFinalized = -2, kNone = -1, kSingle, kFunneled, kSerialized, kMultiple };

  int version;
  const char* (*library)();  ///< its version text: "Open MPI v4.1.4, ..."
  Level (*level)();
  Handle (*world)();
  void (*abort)(Handle comm, int code);  ///< ends every process of `comm`

  int (*initialize)(Level* got);  ///< asks for kSerialized
  int (*finalize)();
  /// `callback` runs at the beginning of MPI_Finalize.
  int (*before_finalize)(void (*callback)());
  /// Collective, does not block. `made` must stay where it is until the request is complete.
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
