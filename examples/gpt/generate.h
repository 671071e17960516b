#pragma once

#include <cstdint>
#include <string>

#include "tessera/examples/gpt/model.h"

namespace gpt {

struct Sampling {
  int64_t new_bytes = 400;
  double temperature = 0.8;  ///< 0 takes the likeliest byte; 1 samples the model's distribution
  uint64_t seed = 1;         ///< of a generator of its own, so training's is not advanced
};

/// Continues `prompt` byte by byte and returns it with its continuation. The model sees the last
/// `context` bytes. An empty prompt counts as a line break. Local, without gradients; one forward
/// pass per byte.
std::string generate(Gpt& model, const std::string& prompt, const Sampling& sampling);

/// Returns `text` with everything but printable ASCII, line breaks and tabs written as \xNN, so
/// that a half-trained model cannot control a terminal.
std::string printable(const std::string& text);

}  // namespace gpt
