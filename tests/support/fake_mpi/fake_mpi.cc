#include "tessera/tests/support/fake_mpi/fake_mpi.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::internal::testing {
namespace fake_mpi_parts {  // unity builds join anonymous namespaces, so this one has a name

using tessera::mpi::Calls;
using tessera::mpi::Handle;

constexpr size_t kEager = 4096;
constexpr int kBroken = 77;

struct Communicator {
  int id;
  int size;
  int rank;
  int copies = 0;
};

struct Request {
  bool is_over = false;
  int looks = 0;  // tests until the end is seen
  int source = -1;
};

struct Message {
  int communicator;
  int from;
  int to;
  int tag;
  const char* data;        // of the sender, until it is received
  std::vector<char> copy;  // of a small message
  size_t bytes;
  Handle request;  // completes when it is received; 0: none
};

struct Receive {
  int communicator;
  int rank;
  int from;
  int tag;
  char* data;
  size_t bytes;
  Handle request;
};

struct State {
  std::map<Handle, Communicator> communicators;
  std::map<std::tuple<int, int>, int> ids;     // of communicator copies: by original and number
  std::map<int, std::vector<Handle>> waiting;  // requests for a copy that some ranks have made
  std::map<Handle, Request> requests;
  std::list<Message> messages;
  std::list<Receive> receives;
  Handle last = 0;
  int last_id = 1 << 20;
  std::mt19937 random{17};
};

State& state() {
  static State& state = *new State;  // progress threads may outlive main()
  return state;
}

std::atomic<int> callers{0};
std::array<std::atomic<int64_t>, 64> data_bytes{};  // by the sender's rank
std::atomic<int64_t> under_way{0};
std::atomic<int64_t> most_under_way{0};
std::atomic<int> fake_level{Calls::kMultiple};
std::atomic<int> broken_rank{-1};
std::atomic<int> gone_rank{-1};
std::atomic<int> mute_rank{-1};
std::atomic<int> endless_rank{-1};

/// Held during a call: aborts if two threads call at once.
class Alone {
 public:
  Alone() {
    if (callers.fetch_add(1) != 0) {
      std::fprintf(stderr, "[fake mpi] two threads call MPI at a time\n");
      std::abort();
    }
  }
  ~Alone() { callers.fetch_sub(1); }
};

Handle new_request() {
  State& all = state();
  const Handle request = ++all.last;
  all.requests[request].looks = static_cast<int>(all.random() % 3);
  return request;
}

bool matches(const Receive& receive, const Message& message) {
  return receive.communicator == message.communicator && receive.rank == message.to &&
         (receive.from == Calls::kAnySource || receive.from == message.from) &&
         receive.tag == message.tag;
}

void deliver(const Receive& receive, const Message& message) {
  if (message.bytes > receive.bytes) {
    std::fprintf(stderr, "[fake mpi] rank %d receives %zu bytes of rank %d where it expects %zu\n",
                 receive.rank, message.bytes, message.from, receive.bytes);
    std::abort();
  }
  const char* from = message.data != nullptr ? message.data : message.copy.data();
  if (message.bytes > 0) std::memcpy(receive.data, from, message.bytes);
  Request& request = state().requests[receive.request];
  request.is_over = true;
  request.source = message.from;
  if (message.request != 0) state().requests[message.request].is_over = true;
}

int send(const void* data, size_t bytes, int to, int tag, Handle comm, Handle* request) {
  const Alone alone;
  State& all = state();
  const Communicator& own = all.communicators.at(comm);
  int broken = own.rank;
  if (broken_rank.compare_exchange_strong(broken, -1)) return kBroken;
  if (to == gone_rank.load()) return kBroken;
  if (tag != 0) data_bytes.at(static_cast<size_t>(own.rank)) += static_cast<int64_t>(bytes);
  *request = new_request();
  int endless = own.rank;
  if (tag != 0 && endless_rank.compare_exchange_strong(endless, -1)) {
    all.requests[*request].looks = std::numeric_limits<int>::max();
  }
  if (mute_rank.load() == own.rank) {
    all.requests[*request].is_over = true;
    return 0;
  }
  Message message{own.id, own.rank, to, tag, nullptr, {}, bytes, 0};
  const auto* const from = static_cast<const char*>(data);
  if (bytes <= kEager) {
    message.copy.assign(from, from + bytes);
    all.requests[*request].is_over = true;
  } else {
    message.data = from;
    message.request = *request;
  }
  const auto found = std::find_if(all.receives.begin(), all.receives.end(),
                                  [&](const Receive& one) { return matches(one, message); });
  if (found == all.receives.end()) {
    if (tag != 0) {
      const int64_t now = under_way.fetch_add(static_cast<int64_t>(bytes)) + message.bytes;
      most_under_way = std::max(most_under_way.load(), now);
    }
    all.messages.push_back(std::move(message));
    return 0;
  }
  deliver(*found, message);
  all.receives.erase(found);
  return 0;
}

int receive(void* data, size_t bytes, int from, int tag, Handle comm, Handle* request) {
  const Alone alone;
  State& all = state();
  const Communicator& own = all.communicators.at(comm);
  *request = new_request();
  const Receive made{own.id, own.rank, from, tag, static_cast<char*>(data), bytes, *request};
  const auto found = std::find_if(all.messages.begin(), all.messages.end(),
                                  [&](const Message& one) { return matches(made, one); });
  if (found == all.messages.end()) {
    all.receives.push_back(made);
    return 0;
  }
  if (tag != 0) under_way.fetch_sub(static_cast<int64_t>(found->bytes));
  deliver(made, *found);
  all.messages.erase(found);
  return 0;
}

int test(Handle* request, int* is_over, int* source) {
  const Alone alone;
  Request& own = state().requests.at(*request);
  *is_over = own.is_over && own.looks-- <= 0 ? 1 : 0;
  if (*is_over == 0) return 0;
  *source = own.source;
  state().requests.erase(*request);
  *request = 0;
  return 0;
}

int cancel(Handle* request) {
  const Alone alone;
  State& all = state();
  const size_t before = all.receives.size();
  all.receives.remove_if([&](const Receive& one) { return one.request == *request; });
  if (all.receives.size() != before) all.requests.at(*request).is_over = true;
  return 0;
}

int duplicate(Handle comm, Handle* made, Handle* request) {
  const Alone alone;
  State& all = state();
  Communicator& own = all.communicators.at(comm);
  int& id = all.ids[{own.id, own.copies++}];
  if (id == 0) id = ++all.last_id;
  *request = new_request();
  *made = ++all.last;
  all.communicators[*made] = {id, own.size, own.rank};
  std::vector<Handle>& waiting = all.waiting[id];
  waiting.push_back(*request);
  if (static_cast<int>(waiting.size()) == own.size) {
    for (const Handle one : waiting) all.requests.at(one).is_over = true;
  }
  return 0;
}

int get_rank(Handle comm, int* rank) {
  *rank = state().communicators.at(comm).rank;
  return 0;
}

int get_size(Handle comm, int* size) {
  *size = state().communicators.at(comm).size;
  return 0;
}

int error_text(int /*code*/, char* text, size_t bytes) {
  std::snprintf(text, bytes, "broken wire");
  return 0;
}

}  // namespace fake_mpi_parts

const tessera::mpi::Calls& fake_mpi() {
  using namespace fake_mpi_parts;
  static const Calls calls = {
      .version = Calls::kVersion,
      .library = [] { return "fake MPI"; },
      .level = [] { return static_cast<Calls::Level>(fake_level.load()); },
      .world = [] { return Handle{0}; },
      .abort = [](Handle, int) { std::abort(); },
      .initialize = [](Calls::Level*) { return 0; },
      .finalize = [] { return 0; },
      .before_finalize = [](void (*)()) { return 0; },
      .duplicate = duplicate,
      .release = [](Handle*) { return 0; },
      .rank = get_rank,
      .size = get_size,
      .largest_tag =
          [](Handle, int* tag) {
            *tag = 32767;
            return 0;
          },
      .send = send,
      .receive = receive,
      .test = test,
      .cancel = cancel,
      .error_text = error_text,
  };
  return calls;
}

tessera::mpi::Handle fake_communicator(int world, int size, int rank) {
  using namespace fake_mpi_parts;
  State& all = state();
  const Handle made = ++all.last;
  all.communicators[made] = {world, size, rank};
  return made;
}

int64_t take_fake_most_bytes_under_way() {
  return fake_mpi_parts::most_under_way.exchange(fake_mpi_parts::under_way.load());
}

int64_t fake_data_bytes_of(int rank) {
  return fake_mpi_parts::data_bytes.at(static_cast<size_t>(rank));
}

int64_t fake_data_bytes() {
  int64_t sum = 0;
  for (const auto& bytes : fake_mpi_parts::data_bytes) sum += bytes;
  return sum;
}

void set_fake_level(tessera::mpi::Calls::Level level) { fake_mpi_parts::fake_level.store(level); }

void break_next_send(int rank) { fake_mpi_parts::broken_rank.store(rank); }

void break_sends_to(int rank) { fake_mpi_parts::gone_rank.store(rank); }

void never_end_next_data_of(int rank) { fake_mpi_parts::endless_rank.store(rank); }

void lose_sends_of(int rank) { fake_mpi_parts::mute_rank.store(rank); }

}  // namespace tessera::internal::testing
