#include "tessera/core/comm/hosts/window.h"

#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "tessera/core/comm/hosts/coupled_work.h"

namespace tessera::internal::hosts {
namespace {

/// Runs `body`, a call of the window of this host's ranks, whose errors name this rank as all know
/// it.
template <typename Body>
auto as_rank(int rank, Body&& body) {
  try {
    return body();
  } catch (const CommError& error) {
    CommErrorContext context = error.context();
    context.rank = rank;
    throw CommError(std::move(context), error.cause());
  }
}

/// Throws CommError if the group of the window has failed.
void check_failure(tessera::Window& window, int own, at::ScalarType dtype, std::string_view tag) {
  constexpr int64_t kNone = 0;
  const at::Tensor nothing =
      at::from_blob(nullptr, {kNone}, at::TensorOptions().dtype(dtype).device(at::kCPU));
  window.read(own, 0, nothing, tag);
}

}  // namespace

/// A rank that the window does not have is another's to refuse.
bool Window::is_here(int rank) const {
  return rank >= 0 && rank < layout_.ranks() && layout_.host_of(rank) == layout_.host_of(rank_);
}

std::shared_ptr<Work> Window::start_read(int rank, int64_t begin, const at::Tensor& to,
                                         std::string_view tag, int64_t version) {
  check_read(rank, begin, to, layout_.ranks(), numel_, dtype_);
  if (is_here(rank)) {
    return as_rank(rank_, [&] {
      return parts_.inside->start_read(layout_.local_of(rank), begin, to, tag, version);
    });
  }
  return std::make_shared<CoupledWork>(start_remote_read(rank, begin, to, tag, version),
                                       parts_.world);
}

std::shared_ptr<Work> Window::start_remote_read(int rank, int64_t begin, const at::Tensor& to,
                                                std::string_view tag, int64_t version) {
  if (version == kUnversioned || parts_.cache == nullptr) {
    return parts_.flat->start_read(rank, begin, to, tag, version);
  }
  const auto check = [inside = parts_.inside, flat = parts_.flat, own = layout_.local_of(rank_),
                      reader = rank_, dtype = dtype_, tag = std::string(tag)] {
    as_rank(reader, [&] { check_failure(*inside, own, dtype, tag); });
    check_failure(*flat, reader, dtype, tag);
  };
  check();
  const ReadKey key{.window = parts_.number,
                    .rank = rank,
                    .begin = begin,
                    .bytes = static_cast<int64_t>(to.nbytes()),
                    .version = version};
  auto work = ReadCache::start_read(
      parts_.cache, key, to,
      [flat = parts_.flat, rank, begin, tag = std::string(tag), version](const at::Tensor& memory) {
        return flat->start_read(rank, begin, memory, tag, version);
      },
      check);
  // Also where another rank of this host fetches it.
  return std::make_shared<OuterWork>(std::move(work), parts_.host_ranks);
}

int64_t Window::load(int rank, int64_t index) const {
  if (is_here(rank)) {
    return as_rank(rank_, [&] { return parts_.inside->load(layout_.local_of(rank), index); });
  }
  return coupled(parts_.world, [&] { return parts_.flat->load(rank, index); });
}

void Window::store(int64_t index, int64_t value) {
  as_rank(rank_, [&] { parts_.inside->store(index, value); });
}

}  // namespace tessera::internal::hosts
