#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>
#include <torch/torch.h>

namespace gpt {

/// The training text and the held-out text.
class Corpus {
 public:
  /// Reads `path`: a file, or all regular files below a directory in the order of their paths
  /// (files that contain a zero byte are not text and are skipped). Stops after `limit_bytes`, in
  /// the middle of a file if need be. Local, blocking. The same files give the same corpus on every
  /// rank.
  ///
  /// Every tenth block of 64 KiB is held out, or the last tenth of a text shorter than ten blocks.
  /// Holding out the tail would be worse, because the end of a sorted directory is a different kind
  /// of text from its beginning.
  ///
  /// Errors name the path and the remedy: no such file, neither file nor directory, unreadable (all
  /// unreadable files of a directory are listed), no text in it.
  static absl::StatusOr<Corpus> read(const std::string& path, int64_t limit_bytes);

  /// Makes a corpus of `text`.
  static Corpus from_text(const std::string& text);

  /// Returns OK if both parts hold a window of context + 1 bytes and the training part holds
  /// `sequences` of them (one step of all ranks); otherwise an error that says how much text is
  /// missing.
  absl::Status check_size(int64_t context, int64_t sequences) const;

  /// uint8 [n].
  const at::Tensor& training() const { return training_; }
  /// uint8 [n].
  const at::Tensor& held_out() const { return held_out_; }
  int64_t size_bytes() const { return training_.numel() + held_out_.numel(); }
  int64_t files() const { return files_; }

  /// Entropy in nats per byte of a byte drawn from the whole corpus: the lowest loss that a model
  /// without context can reach.
  double unigram_entropy() const;

 private:
  Corpus(at::Tensor training, at::Tensor held_out, int64_t files);

  at::Tensor training_;
  at::Tensor held_out_;
  int64_t files_;
};

}  // namespace gpt
