#!/usr/bin/env bash
# Negative control of check_tree.sh: each rule must catch its deliberate break.
#   check_tree_test.sh
set -euo pipefail
check=$(cd "$(dirname "$0")" && pwd)/check_tree.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

good() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{include/tessera,core/{layout,sched},ddp,zero,examples/gpt,checkpoint/engine,tests/{core,prove/plain,prove/sharded},tools/run}
  printf '#pragma once\n#include <cstdint>\n' >"$tree/core/layout/flat.h"
  printf '#pragma once\n#include "tessera/flat.h"\n' >"$tree/include/tessera/engine.h"
  printf '#pragma once\n' >"$tree/include/tessera/flat.h"
  printf '#pragma once\n#include "tessera/engine.h"\n' >"$tree/include/tessera/tessera.h"
  printf '#include "tessera/engine.h"\nnamespace tessera {\nint x;\n' >"$tree/zero/engine.cc"
  printf '#include "tessera/tessera.h"\n' >"$tree/examples/gpt/main.cc"
  printf '#pragma once\n#include "tessera/core/layout/flat.h"\n' >"$tree/core/sched/lane.h"
  printf '#include "tessera/engine.h"\n#include "tessera/tests/prove/plain/a.h"\n' >"$tree/tests/prove/sharded/b.cc"
  printf '#include "tessera/tests/support/a.h"\n' >"$tree/tests/prove/sharded/control_group.h"
  printf '#pragma once\n' >>"$tree/tests/prove/sharded/control_group.h"
  printf '#include "tessera/tests/prove/plain/a.h"\n' >"$tree/tests/prove/plain/a.cc"
  printf 'namespace tessera {\nclass Flat;\n}\n' >>"$tree/core/sched/lane.h"
  printf '#include "tessera/%s"\n' core/layout/flat.h flat.h >"$tree/ddp/reducer.cc"
  printf 'case Strategy::kDdp:\n' >"$tree/zero/parallelize.cc"
  printf '#pragma once\nclass File {\n  virtual int read(int at) = 0;\n};\n' >"$tree/include/tessera/file_system.h"
  printf 'class Own {\n  int read(int at) override { return 0; }\n};\n' >"$tree/checkpoint/engine/own_file_system.cc"
  printf '#include "tessera/zero/x.h"\ncase Strategy::kDdp:\n' >"$tree/tests/core/x_test.cc"
}

failed=0
expect() {  # rule
  local output
  if output=$("$check" "$tree"); then
    echo "not caught: $1"; failed=1
  elif [[ $(grep -c '^\[' <<<"$output") != 1 || $output != "[$1]"* ]]; then
    echo "$1: got: $output"; failed=1
  fi
  good
}

good
"$check" "$tree" || { echo "a good tree was refused"; failed=1; }
printf '#include "tessera/zero/x.h"\n' >>"$tree/core/layout/flat.h"; expect include-direction
printf '#include "tessera/fsdp/x.h"\n' >>"$tree/ddp/reducer.cc"; expect include-direction
printf '#include "tessera/checkpoint/x.h"\n' >>"$tree/zero/engine.cc"; expect include-direction
printf '#include "layout/flat.h"\n' >>"$tree/ddp/reducer.cc"; expect include-direction
printf '#include "tessera/engine.h"\n' >>"$tree/ddp/reducer.cc"; expect include-direction
printf '#include "tessera/tessera.h"\n' >>"$tree/ddp/reducer.cc"; expect umbrella-inside
printf '#include "tessera/core/layout/flat.h"\n' >>"$tree/examples/gpt/main.cc"
expect examples-include-public
printf '#include "tessera/zero/x.h"\n' >>"$tree/tests/prove/sharded/b.cc"; expect prove-includes-public
printf '#include "tessera/tests/support/x.h"\n' >>"$tree/tests/prove/sharded/b.cc"
expect prove-includes-public
printf '#include "tessera/engine.h"\n' >>"$tree/tests/prove/plain/a.cc"; expect prove-plain-alone
printf '#include <absl/status/status.h>\n' >>"$tree/tests/prove/plain/a.cc"; expect prove-plain-alone
printf 'std::thread([] {}).detach();\n' >>"$tree/core/sched/lane.h"; expect thread-with-signals
printf '#include "tessera/core/layout/flat.h"\n' >>"$tree/include/tessera/flat.h"
expect public-includes-public
printf '#include <tessera/core/layout/flat.h>\n' >>"$tree/include/tessera/flat.h"
expect public-includes-public
printf 'namespace tessera {\nint flat();\n' >>"$tree/core/layout/flat.h"; expect internal-namespace
printf 'namespace tessera::shm {\n' >>"$tree/core/layout/flat.h"; expect internal-namespace
printf '#include "tessera/core/sched/lane.h"\n' >>"$tree/core/layout/flat.h"; expect folder-cycle
mkdir "$tree/zero/step"; printf '#include "tessera/zero/engine.h"\n' >"$tree/zero/step/commit.cc"
printf '#include "tessera/zero/step/commit.h"\n' >>"$tree/zero/engine.cc"; expect folder-cycle
printf '#include <c10/core/Device.h>\n' >"$tree/tools/run/main.cc"; expect launcher-without-torch
mkdir -p "$tree/core/launch"
printf '#include <c10/core/Device.h>\n' >"$tree/core/launch/watcher.cc"; expect launcher-without-torch
mkdir -p "$tree/core/comm/meeting"
printf '#pragma once\n#include <c10/core/Device.h>\n' >"$tree/core/comm/meeting/place.h"; expect meeting-without-torch
printf '  virtual int size(int of) { return 0; }\n' >>"$tree/include/tessera/file_system.h"; expect forwards-each
printf '  virtual int read() { return 0; }\n' >>"$tree/include/tessera/file_system.h"; expect forwards-each
printf '\n' >"$tree/core/bare.h"; expect pragma-once
seq 601 | sed 's/^/\/\//' >"$tree/ddp/long.cc"; expect file-size
printf '#include <torch/torch.h>\n' >>"$tree/core/layout/flat.h"; expect torch-in-core-header
printf '#include <torch/torch.h>\n' >>"$tree/include/tessera/flat.h"; expect torch-in-core-header
printf 'case Strategy::kZero1:\n' >"$tree/ddp/x.cc"; expect one-strategy-switch
printf '  std::exit(1);\n' >"$tree/ddp/x.cc"; expect library-calls-exit
printf 'class Lost : public c10::Error {\n' >>"$tree/core/layout/flat.h"; expect internal-exception
printf 'struct Lost final : std::runtime_error {\n' >"$tree/ddp/x.cc"; expect internal-exception
printf '#include "absl/synchronization/mutex.h"\n' >"$tree/ddp/x.cc"; expect no-absl-mutex

# The same for check_format.sh, if there is a clang-format.
format=${check%/*}/check_format.sh
cp "${check%/tests/*}/.clang-format" "$tree"
if output=$("$format" "$tree" 2>&1); then
  printf 'int  x;\n' >"$tree/ddp/loose.cc"
  if "$format" "$tree" 2>/dev/null; then echo "not caught: a file that is not formatted"; failed=1; fi
elif [[ $? != 77 ]]; then
  echo "a formatted tree was refused: $output"; failed=1
fi
exit $failed
