#pragma once

#include <cstdint>
#include <string>

#include "tessera/examples/gpt/model.h"

namespace gpt {

struct Sampling {
  int64_t new_bytes = 400;
  double temperature = 0.8;  ///< 0 takes the likeliest byte; 1 draws as the model says
  uint64_t seed = 1;         ///< of a generator of its own: training's is left alone
};

/// Continues `prompt` byte by byte and returns it with what follows; the model sees the last
/// `context` bytes. An empty prompt is taken as a line break. Local, without gradients; one forward
/// pass per byte.
std::string generate(Gpt& model, const std::string& prompt, const Sampling& sampling);

/// `text` with everything but printable ASCII, line breaks and tabs written as \xNN, so that a
/// half-trained model cannot command a terminal.
std::string printable(const std::string& text);

}  // namespace gpt
