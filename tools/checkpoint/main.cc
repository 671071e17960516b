// tessera-checkpoint: inspects, verifies, compares, exports and imports checkpoints.
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/tools/checkpoint/command_line.h"

int main(int argc, char** argv) {
  tessera::internal::PosixFileSystem files;
  return tessera::internal::run_checkpoint_command(files, {argv + 1, argv + argc}, stdout, stderr);
}
