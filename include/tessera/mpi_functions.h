#pragma once

// The functions of the MPI whose mpi.h the compiler finds. The program, or the module that includes
// this, needs that MPI's library.
#include <mpi.h>

#include <climits>
#include <cstring>

#include "tessera/mpi_calls.h"

namespace tessera::mpi {
namespace functions {

template <typename Native>
Native native(Handle handle) {
  static_assert(sizeof(Native) <= sizeof(Handle));
  Native made;
  std::memcpy(&made, &handle, sizeof(made));
  return made;
}

template <typename Native>
Handle handle(Native native) {
  Handle made = 0;
  std::memcpy(&made, &native, sizeof(native));
  return made;
}

/// A number of bytes as a count and a datatype for MPI calls. Counts are ints, so more than INT_MAX
/// bytes become one element of a derived type.
class Amount {
 public:
  explicit Amount(size_t bytes) {
    constexpr size_t kBlock = size_t{1} << 30;
    if (bytes <= static_cast<size_t>(INT_MAX)) {
      count_ = static_cast<int>(bytes);
      return;
    }
    int lengths[2] = {static_cast<int>(bytes / kBlock), static_cast<int>(bytes % kBlock)};
    MPI_Aint places[2] = {0, static_cast<MPI_Aint>(bytes / kBlock * kBlock)};
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block);
    MPI_Datatype types[2] = {block, MPI_BYTE};
    MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&block);
    is_made_ = true;
  }
  ~Amount() {
    if (is_made_) MPI_Type_free(&type_);  // operations under way keep the type
  }
  Amount(const Amount&) = delete;
  Amount& operator=(const Amount&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
  bool is_made_ = false;
};

/// Returns the first line of MPI's version text.
inline const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (text[0] != '\0') return text;
  MPI_Get_library_version(text, &length);
  if (char* const end = std::strchr(text, '\n')) *end = '\0';
  return text;
}

inline Calls::Level level_of(int level) {
  if (level == MPI_THREAD_MULTIPLE) return Calls::kMultiple;
  if (level == MPI_THREAD_SERIALIZED) return Calls::kSerialized;
  return level == MPI_THREAD_FUNNELED ? Calls::kFunneled : Calls::kSingle;
}

inline Calls::Level level() {
  int flag = 0;
  MPI_Finalized(&flag);
  if (flag != 0) return Calls::kFinalized;
  MPI_Initialized(&flag);
  if (flag == 0) return Calls::kNone;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level_of(level);
}

inline Handle world() { return handle(MPI_COMM_WORLD); }

inline void abort(Handle comm, int code) { MPI_Abort(native<MPI_Comm>(comm), code); }

inline int initialize(Calls::Level* got) {
  int level = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  *got = level_of(level);
  return code;
}

inline int finalize() { return MPI_Finalize(); }

using Callback = void (*)();

inline int run_callback(MPI_Comm, int, void* callback, void*) {
  reinterpret_cast<Callback>(callback)();
  return MPI_SUCCESS;
}

/// Makes MPI call `callback` at the beginning of MPI_Finalize: MPI_Finalize first deletes the
/// attributes of MPI_COMM_SELF, so this call attaches an attribute whose deletion calls `callback`.
inline int before_finalize(Callback callback) {
  int key = MPI_KEYVAL_INVALID;
  const int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, run_callback, &key, nullptr);
  if (code != MPI_SUCCESS) return code;
  return MPI_Comm_set_attr(MPI_COMM_SELF, key, reinterpret_cast<void*>(callback));
}

inline int duplicate(Handle comm, Handle* made, Handle* request) {
  *made = 0;
  MPI_Request started = MPI_REQUEST_NULL;
  const int code =
      MPI_Comm_idup(native<MPI_Comm>(comm), reinterpret_cast<MPI_Comm*>(made), &started);
  *request = handle(started);
  return code;
}

inline int release(Handle* comm) {
  auto own = native<MPI_Comm>(*comm);
  return MPI_Comm_free(&own);
}

inline int rank(Handle comm, int* rank) { return MPI_Comm_rank(native<MPI_Comm>(comm), rank); }

inline int size(Handle comm, int* size) { return MPI_Comm_size(native<MPI_Comm>(comm), size); }

/// Sets `*tag` to the largest tag that messages on `comm` may have. Also sets MPI_ERRORS_RETURN on
/// `comm`, because by default an MPI error ends the process.
inline int largest_tag(Handle comm, int* tag) {
  const auto own = native<MPI_Comm>(comm);
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  int* value = nullptr;
  int is_set = 0;
  const int code = MPI_Comm_get_attr(own, MPI_TAG_UB, &value, &is_set);
  constexpr int kLeast = 32767;  // the MPI standard guarantees that tags up to this one are allowed
  *tag = code == MPI_SUCCESS && is_set != 0 ? *value : kLeast;
  return code;
}

inline int send(const void* data, size_t bytes, int to, int tag, Handle comm, Handle* request) {
  const Amount amount(bytes);
  MPI_Request started = MPI_REQUEST_NULL;
  const int code =
      MPI_Isend(data, amount.count(), amount.type(), to, tag, native<MPI_Comm>(comm), &started);
  *request = handle(started);
  return code;
}

inline int receive(void* data, size_t bytes, int from, int tag, Handle comm, Handle* request) {
  const Amount amount(bytes);
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, amount.count(), amount.type(),
                             from == Calls::kAnySource ? MPI_ANY_SOURCE : from, tag,
                             native<MPI_Comm>(comm), &started);
  *request = handle(started);
  return code;
}

inline int test(Handle* request, int* is_over, int* source) {
  auto own = native<MPI_Request>(*request);
  MPI_Status status;
  status.MPI_SOURCE = Calls::kAnySource;
  const int code = MPI_Test(&own, is_over, &status);
  *request = handle(own);
  *source = status.MPI_SOURCE;
  return code;
}

inline int cancel(Handle* request) {
  auto own = native<MPI_Request>(*request);
  return MPI_Cancel(&own);
}

inline int error_text(int code, char* text, size_t bytes) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  const int result = MPI_Error_string(code, whole, &length);
  if (bytes == 0) return result;
  std::strncpy(text, whole, bytes - 1);
  text[bytes - 1] = '\0';
  return result;
}

}  // namespace functions

/// Returns the table for the MPI of this header's mpi.h. The table lives as long as the program or
/// module that includes this header.
inline const Calls& calls() {
  static const Calls table = {
      .version = Calls::kVersion,
      .library = functions::library,
      .level = functions::level,
      .world = functions::world,
      .abort = functions::abort,
      .initialize = functions::initialize,
      .finalize = functions::finalize,
      .before_finalize = functions::before_finalize,
      .duplicate = functions::duplicate,
      .release = functions::release,
      .rank = functions::rank,
      .size = functions::size,
      .largest_tag = functions::largest_tag,
      .send = functions::send,
      .receive = functions::receive,
      .test = functions::test,
      .cancel = functions::cancel,
      .error_text = functions::error_text,
  };
  return table;
}

}  // namespace tessera::mpi
