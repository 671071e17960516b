#pragma once

#include <functional>

namespace tessera {

/// For main(): runs `body` and returns what it returns. If an exception leaves `body`, passes its
/// text to tessera-run or launch() if one of them has started this rank, writes it to
/// TORCHELASTIC_ERROR_FILE (torchrun shows it from there) and to stderr, and returns an exit code:
/// 64 (EX_USAGE) for std::invalid_argument, which means wrong input to the program; the failed
/// rank's exit code for RankError; and 1 otherwise. Local. A failure to write the file is ignored.
///
///     int main(int argc, char** argv) {
///       return tessera::record_errors([&] { return train(argc, argv); });
///     }
///
/// If a program does not use it, an exception that leaves main() aborts the process: tessera-run
/// and launch() get the text, but torchrun does not, and stacks are not unwound.
int record_errors(const std::function<int()>& body);

}  // namespace tessera
