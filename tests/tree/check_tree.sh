#!/usr/bin/env bash
# Checks rules that no compiler checks: the direction of includes, no cycles between folders, and
# the size of files. Prints every violation; fails if there is one.
#   check_tree.sh <root of the tree>
set -u  # no pipefail: a grep that finds nothing is the good case
cd "$1" || exit 2

offend() { sed "s/^/[$1] /"; }
sources() {  # folders...
  local folder
  for folder in "$@"; do
    [[ ! -d $folder ]] || find "$folder" -name '*.h' -o -name '*.cc' | grep -v '^tests/consumer/'
  done
}
search() { xargs -r grep -HnE "$1"; }  # $1: an expression; the list of files comes on stdin

# Public headers that belong to one of these folders, or to none: each header belongs to the folder
# with its .cc file.
public_of() {  # folders...
  local header owner
  for header in include/tessera/*.h; do
    header=${header##*/}
    [[ $header != tessera.h && $header != '*.h' ]] || continue
    owner=$(find core optim ddp fsdp zero data checkpoint -name "${header%.h}.cc" 2>/dev/null | head -n 1)
    owner=${owner%%/*}
    [[ -n $owner && " $* " != *" $owner "* ]] || echo "$header"
  done
}
# folder: how its quoted includes may begin.
own() {
  local public
  public=$(public_of $1 | tr '\n' '|')
  echo "tessera/(($(tr ' ' '|' <<<"$1"))/|(${public}tessera[.]h)\")"
}
foreign='(absl|gtest|gmock|benchmark|nlohmann)/'
include_rules() {
  local core=core optim='core optim' ddp='core optim ddp' fsdp='core optim fsdp'
  local zero='core optim ddp fsdp zero' data='core data'
  local checkpoint='core optim ddp fsdp zero data checkpoint'
  cat <<LIST
core:$core
optim:$optim
ddp:$ddp
fsdp:$fsdp
zero:$zero
data:$data
checkpoint:$checkpoint
tools:$checkpoint tools
bench:$checkpoint examples bench
tests:$checkpoint tools examples tests
LIST
}

# The names of the functions that are declared or defined on lines of a file, one per line.
functions() {  # the regular expression that such lines begin with, the file
  [[ ! -f $2 ]] || sed -nE "s/^ +$1[^(]*[ *&]([a-z_]+)[(].*/\\1/p" "$2" | sort
}

# Pairs of folders of the library, one per line: the second is included from the first.
folder_includes() {
  sources core optim ddp fsdp zero data checkpoint | search '^ *# *include *"tessera/.*/' |
    sed -nE 's,^(.*)/[^/]*:[0-9]+: *# *include *"tessera/(.*)/[^/]*".*,\1 \2,p' |
    awk '$1 != $2' | sort -u
}

check() {
  local folder allowed file lines switches
  local library tree
  library=$(sources include core optim ddp fsdp zero data checkpoint)
  tree=$(sources include core optim ddp fsdp zero data checkpoint tools examples bench tests)

  while IFS=: read -r folder allowed; do
    sources "$folder" | search '^ *# *include *"' |
      grep -vE "include *\"($(own "$allowed")|$foreign)" | offend include-direction
  done < <(include_rules)

  # The umbrella header costs as much as torch/torch.h and shows more than a part of the library
  # needs.
  sources core optim ddp fsdp zero data checkpoint tools | search '"tessera/tessera[.]h"' | offend umbrella-inside
  # Examples include only what a user has.
  sources examples | search '^ *# *include *"' |
    grep -vE 'include *"(tessera/(examples/|[a-z_]+[.]h")|absl/)' | offend examples-include-public
  # A proof for strangers includes only what a user has, and its plain half nothing of Tessera. The
  # exception is the group that makes mistakes, which is derived from a class of the tests.
  sources tests/prove | search '^ *# *include *"' |
    grep -vE 'include *"(tessera/(tests/prove/|[a-z_]+[.]h")|absl/)' |
    grep -v '^tests/prove/sharded/control_group[.]h:' | offend prove-includes-public
  sources tests/prove/plain 2>/dev/null | search '^ *# *include *("|<(tessera|absl))' |
    grep -vE 'include *"tessera/tests/prove/plain/' | offend prove-plain-alone
  # Public headers must not need headers that are not installed.
  sources include | search '^ *# *include *("|<tessera)' |
    grep -vE 'include *"tessera/[a-z_]+[.]h"' | offend public-includes-public

  # Everything that users do not include is in tessera::internal. Exceptions: the .cc file of a
  # public header, the first header that it includes, and public types that are only declared.
  # tessera::data, ::nn and ::mpi are public.
  grep -v '^include/' <<<"$library" | xargs -r awk '
    FNR == 1 { own = "" }
    own == "" && /^#include "tessera\// { own = $2 }
    opened != "" { if ($0 !~ /^(class|struct) [A-Za-z]+;$/) print opened; opened = "" }
    /^namespace tessera(::data|::nn)? \{$/ && (FILENAME ~ /\.h$/ || own ~ /\/.*\//) {
      opened = FILENAME ":" FNR ": " $0
    }
    /^namespace tessera::[a-z_:]+ \{$/ && !/tessera::(internal|data|nn|mpi)/ { print FILENAME ":" FNR ": " $0 }' |
    offend internal-namespace

  # Two folders that need each other should be one folder.
  folder_includes | tsort 2>&1 >/dev/null | sed '/contains a loop/d; s/^tsort: //' | xargs -r |
    offend folder-cycle

  # The launcher starts in milliseconds, so it must not load LibTorch. It shares a few files with
  # the ranks, which obey the same rule.
  local launch='(exit_status|failures|kill_reasons|random_text|rank_process|store_directory|thread_binding|watcher|worker_environment)'
  local process='(available_cores|control_groups|error_file|file_descriptor|job_page|process_status|rank_progress|system_refusal)'
  { sources tools/run
    find core -regextype posix-extended -regex "core/(launch/$launch|process/$process)[.](h|cc)" 2>/dev/null; } |
    search '^ *# *include *(<(torch|ATen|c10)/|"tessera/[^t])' |
    grep -vE "\"tessera/core/(launch/$launch|process/$process)[.]h\"" | offend launcher-without-torch

  # A launcher may use the same meeting code as ranks.
  sources core/comm/meeting | search '^ *# *include *<(torch|ATen|c10)/' | offend meeting-without-torch

  # The wrapper of a file system must forward each function: without a line of its own, a function
  # would silently fall back to its default.
  comm -23 <(functions virtual include/tessera/file_system.h) \
    <(functions '[a-z]' checkpoint/engine/own_file_system.cc) |
    sed 's,^,checkpoint/engine/own_file_system.cc has no ,' | offend forwards-each

  for file in $tree; do
    if [[ $file == *.h ]] && ! grep -q '^#pragma once$' "$file"; then echo "$file"; fi
  done | offend pragma-once

  for file in $tree; do
    lines=$(wc -l <"$file")
    if ((lines > 600)); then echo "$file: $lines lines, at most 600"; fi
  done | offend file-size

  # Each includer of such a header compiles for 24 s longer.
  sources include core | grep '\.h$' | grep -v '/tessera\.h$' | search '# *include *[<"]torch/(torch|all|nn|extension)\.h' |
    offend torch-in-core-header

  # A strategy is a row in a table: a second switch on it would be a separate code path.
  switches=$(grep -v '^tests/' <<<"$tree" | search 'case +Strategy::' | cut -d: -f1 | sort -u)
  if (($(wc -l <<<"$switches") > 1)); then echo $switches | offend one-strategy-switch; fi

  search '(^|[^_a-zA-Z.>])(std::)?_?(exit|quick_exit|_Exit)\(' <<<"$library" |
    grep -vE '^[^:]*:[0-9]+: *//' |
    grep -v '^core/comm/mpi/progress.cc:[0-9]*:    std::_Exit(1);' |  # the process is already ending
    grep -vE '^core/launch/(rank_process|watcher).cc:[0-9]*:.* _exit\([0-9]+\);' |  # the child after fork()
    offend library-calls-exit

  search '(std::j?thread[({]|make_unique<std::thread>[(][[])' <<<"$library" |
    grep -v '^core/process/thread_without_signals[.]h:' | offend thread-with-signals

  # An uncaught exception is printed with its type, so the type must be public.
  grep -v '^include/' <<<"$library" | search '^ *(class|struct) .*: *(public +)?(c10|std|tessera)?(::)?[A-Za-z_]*([Ee]rror|[Ee]xception)\b' |
    offend internal-exception

  # Debian's Abseil is not instrumented, so the thread sanitizer cannot see its mutexes.
  search 'absl/synchronization/' <<<"$tree" | offend no-absl-mutex
}

offences=$(check)
[[ -z $offences ]] || { echo "$offences"; exit 1; }
