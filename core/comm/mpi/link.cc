#include "tessera/core/comm/mpi/link.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera::internal::mpi {

Link::Link(const Calls& calls, Handle comm) : calls_(calls), comm_(comm) {
  check(calls_.largest_tag(comm_, &largest_tag_), "MPI_Comm_get_attr");
  check(calls_.rank(comm_, &rank_), "MPI_Comm_rank");
  check(calls_.size(comm_, &size_), "MPI_Comm_size");
}

int Link::draw_tag() {
  last_tag_ = last_tag_ < largest_tag_ ? last_tag_ + 1 : 1;
  return last_tag_;
}

void Link::release() { calls_.release(&comm_); }

void Link::check(int code, std::string_view function) const {
  if (code == 0) return;
  char text[256] = "";
  calls_.error_text(code, text, sizeof(text));
  TORCH_CHECK(false, function, ": ", text);
}

Exchange::Exchange(Link& link, const std::vector<int>& world_ranks, int own_tag)
    : link_(link),
      world_ranks_(world_ranks),
      own_tag_(own_tag),
      tags_(world_ranks.size(), kNoTag) {}

void Exchange::note_send(int to, int64_t bytes, int code, Handle request) {
  if (code != 0) {
    link_.check(code, absl::StrCat("MPI_Isend to rank ", world_ranks_[static_cast<size_t>(to)]));
  }
  sent_bytes_ += bytes;
  open_.push_back({request, to, /*receives=*/false, step_});
}

void Exchange::send(int to, const char* data, int64_t bytes) {
  if (bytes == 0) return;
  Handle request = 0;
  const int code =
      link_.calls().send(data, static_cast<size_t>(bytes), world_ranks_[static_cast<size_t>(to)],
                         own_tag_, link_.comm(), &request);
  note_send(to, bytes, code, request);
}

void Exchange::receive(int from, char* data, int64_t bytes) {
  if (bytes == 0) return;
  const auto index = static_cast<size_t>(from);
  Handle request = 0;
  link_.check(link_.calls().receive(data, static_cast<size_t>(bytes), world_ranks_[index],
                                    tags_[index], link_.comm(), &request),
              "MPI_Irecv");
  open_.push_back({request, from, /*receives=*/true, step_});
}

void Exchange::send_in_pieces(int to, const char* data, int64_t bytes) {
  for (int64_t begin = 0; begin < bytes; begin += kUnaskedBytes) {
    send(to, data + begin, std::min(kUnaskedBytes, bytes - begin));
  }
}

void Exchange::receive_in_pieces(int from, char* data, int64_t bytes) {
  for (int64_t begin = 0; begin < bytes; begin += kUnaskedBytes) {
    receive(from, data + begin, std::min(kUnaskedBytes, bytes - begin));
  }
}

bool Exchange::look(Transfer& transfer) {
  int is_over = 0;
  int source = 0;
  link_.check(link_.calls().test(&transfer.request, &is_over, &source), "MPI_Test");
  return is_over != 0;
}

/// They stand in the order in which they began, and any test lets MPI go on with all of them.
bool Exchange::is_over_but_for(int64_t steps) {
  while (!open_.empty() && look(open_.front())) open_.pop_front();
  return open_.empty() || open_.front().step > step_ - steps;
}

void Exchange::cancel() {
  for (Transfer& transfer : open_) {
    if (transfer.receives) link_.calls().cancel(&transfer.request);
  }
}

std::vector<int> Exchange::open_ranks() {
  std::erase_if(open_, [this](Transfer& transfer) { return look(transfer); });
  std::vector<int> ranks;
  for (const Transfer& transfer : open_) ranks.push_back(transfer.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace tessera::internal::mpi
