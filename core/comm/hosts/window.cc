#include "tessera/core/comm/hosts/window.h"

#include <string>

#include <ATen/ops/from_blob.h>

#include "tessera/core/comm/hosts/coupled_work.h"

namespace tessera::internal::hosts {
namespace {

/// Throws CommError if the group of the window has failed, as rank `rank` of all, which reads
/// `tag`.
void check_failure(tessera::Window& window, int own, at::ScalarType dtype, int rank,
                   const std::string& tag) {
  constexpr int64_t kNone = 0;
  const at::Tensor nothing =
      at::from_blob(nullptr, {kNone}, at::TensorOptions().dtype(dtype).device(at::kCPU));
  try {
    window.read(own, 0, nothing);
  } catch (const CommError& error) {
    CommErrorContext context = error.context();
    context.rank = rank;
    context.tag = tag;
    throw CommError(context, error.cause());
  }
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
    return parts_.inside->start_read(layout_.local_of(rank), begin, to, tag, version);
  }
  return std::make_shared<CoupledWork>(start_remote_read(rank, begin, to, tag, version),
                                       parts_.world);
}

std::shared_ptr<Work> Window::start_remote_read(int rank, int64_t begin, const at::Tensor& to,
                                                std::string_view tag, int64_t version) {
  if (version == kUnversioned || parts_.cache == nullptr) {
    return parts_.flat->start_read(rank, begin, to, tag, version);
  }
  const int own = layout_.local_of(rank_);
  check_failure(*parts_.inside, own, dtype_, rank_, std::string(tag));
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
      [inside = parts_.inside, own, dtype = dtype_, reader = rank_, tag = std::string(tag)] {
        check_failure(*inside, own, dtype, reader, tag);
      });
  return std::make_shared<OuterWork>(std::move(work), parts_.absences);  // also of another's fetch
}

int64_t Window::load(int rank, int64_t index) const {
  if (is_here(rank)) return parts_.inside->load(layout_.local_of(rank), index);
  return coupled(parts_.world, [&] { return parts_.flat->load(rank, index); });
}

void Window::store(int64_t index, int64_t value) { parts_.inside->store(index, value); }

}  // namespace tessera::internal::hosts
