#include "tessera/core/comm/rendezvous/rank_threads.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal {

RankThreads::RankThreads(int size, std::function<void(int rank)> body) : body_(std::move(body)) {
  threads_.reserve(static_cast<size_t>(size));  // so that it does not grow while a rank forks
  try {
    // Unlike the library's own threads, which block signals, these keep the caller's signal mask,
    // because they run the program's own code.
    for (int rank = 0; rank < size; ++rank) threads_.emplace_back([this, rank] { run(rank); });
  } catch (const std::system_error& error) {
    let_go(/*may_begin=*/false);  // otherwise started threads would wait for the rest
    for (std::thread& thread : threads_) thread.join();
    throw_no_thread(absl::StrCat("rank ", threads_.size(), " of ", size), error);
  }
  let_go(/*may_begin=*/true);
}

RankThreads::~RankThreads() {
  for (std::thread& thread : threads_) thread.join();
}

bool RankThreads::wait_for(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return ended_ == threads_.size(); });
}

std::vector<RankThreads::Failure> RankThreads::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_ == threads_.size(); });
  std::ranges::stable_sort(failures_, {}, &Failure::when);
  return std::exchange(failures_, {});
}

void RankThreads::run(int rank) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
    if (!may_begin_) return;
  }
  std::optional<Failure> failure;
  try {
    body_(rank);
  } catch (...) {
    const auto when = Unwinding::began().value_or(std::chrono::steady_clock::now());
    failure = Failure{rank, std::current_exception(), when};
  }
  const std::lock_guard lock(mutex_);
  if (failure) failures_.push_back(*std::move(failure));
  ++ended_;
  changed_.notify_all();
}

void RankThreads::let_go(bool may_begin) {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  may_begin_ = may_begin;
  changed_.notify_all();
}

}  // namespace tessera::internal
