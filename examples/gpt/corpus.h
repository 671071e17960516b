#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>
#include <torch/torch.h>

namespace gpt {

/// The bytes a model learns from and those it is judged by.
class Corpus {
 public:
  /// Reads `path`: a file, or a directory, of which all regular files are taken recursively in
  /// order of their paths (files with a zero byte are no text and left out). Stops after
  /// `limit_bytes`, in the middle of a file if need be. Local, blocking; the same files give the
  /// same corpus on every rank.
  ///
  /// Held out is every tenth block of 64 KiB, or the last tenth of a text shorter than ten blocks:
  /// blocks rather than the tail, because the end of a sorted directory is another kind of text
  /// than its beginning.
  ///
  /// Errors name the path and what to do: no such file, neither file nor directory, unreadable (all
  /// of a directory's unreadable files are listed), no text in it.
  static absl::StatusOr<Corpus> read(const std::string& path, int64_t limit_bytes);

  /// As above from bytes that are there already.
  static Corpus from_text(const std::string& text);

  /// OK, or an error that says how much text is missing, unless both parts hold a window of context
  /// + 1 bytes and the training part holds `sequences` of them (one step of all ranks).
  absl::Status check_size(int64_t context, int64_t sequences) const;

  /// uint8 [n].
  const at::Tensor& training() const { return training_; }
  /// uint8 [n].
  const at::Tensor& held_out() const { return held_out_; }
  int64_t size_bytes() const { return training_.numel() + held_out_.numel(); }
  int64_t files() const { return files_; }

  /// Entropy in nats per byte of a byte drawn from the whole corpus: the least loss of a model that
  /// looks at no context.
  double unigram_entropy() const;

 private:
  Corpus(at::Tensor training, at::Tensor held_out, int64_t files);

  at::Tensor training_;
  at::Tensor held_out_;
  int64_t files_;
};

}  // namespace gpt
