#!/usr/bin/env bash
# Checks what no compiler does: the direction of the includes, that no folder needs one that needs
# it, and the size of the files. Prints every offence; fails if there is one.
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
search() { xargs -r grep -HnE "$1"; }  # an expression; the files come on stdin

# Public headers that belong to one of these folders, or to none: each belongs to the one that has
# its .cc file.
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
# folder: what its quoted includes may begin with.
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

# The folders of the library that its folders include from, two in a line.
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

  # The umbrella costs what torch/torch.h does, and shows more than a part of the library needs.
  sources core optim ddp fsdp zero data checkpoint tools | search '"tessera/tessera[.]h"' | offend umbrella-inside
  # A program includes what a user has.
  sources examples | search '^ *# *include *"' |
    grep -vE 'include *"(tessera/(examples/|[a-z_]+[.]h")|absl/)' | offend examples-include-public
  # A proof for strangers is built from what they have; its plain half is not ours at all. The group
  # that makes mistakes is one of the tests' own.
  sources tests/prove | search '^ *# *include *"' |
    grep -vE 'include *"(tessera/(tests/prove/|[a-z_]+[.]h")|absl/)' |
    grep -v '^tests/prove/sharded/control_group[.]h:' | offend prove-includes-public
  sources tests/prove/plain 2>/dev/null | search '^ *# *include *("|<(tessera|absl))' |
    grep -vE 'include *"tessera/tests/prove/plain/' | offend prove-plain-alone
  # What users include must not need what is not installed.
  sources include | search '^ *# *include *("|<tessera)' |
    grep -vE 'include *"tessera/[a-z_]+[.]h"' | offend public-includes-public

  # What users do not include is in tessera::internal. Not so: the .cc file of a public header, the
  # first that it includes, and public types that are only declared. tessera::data, ::nn and ::mpi are public.
  grep -v '^include/' <<<"$library" | xargs -r awk '
    FNR == 1 { own = "" }
    own == "" && /^#include "tessera\// { own = $2 }
    opened != "" { if ($0 !~ /^(class|struct) [A-Za-z]+;$/) print opened; opened = "" }
    /^namespace tessera(::data|::nn)? \{$/ && (FILENAME ~ /\.h$/ || own ~ /\/.*\//) {
      opened = FILENAME ":" FNR ": " $0
    }
    /^namespace tessera::[a-z_:]+ \{$/ && !/tessera::(internal|data|nn|mpi)/ { print FILENAME ":" FNR ": " $0 }' |
    offend internal-namespace

  # Folders that need each other are one folder.
  folder_includes | tsort 2>&1 >/dev/null | sed '/contains a loop/d; s/^tsort: //' | xargs -r |
    offend folder-cycle

  # The launcher starts in milliseconds: it must not load LibTorch.
  # With the ranks it shares a few files, which keep to that.
  local launch='(ending|failures|kill_reasons|random_text|rank_process|store_directory|thread_binding|watcher|worker_environment)'
  local process='(available_cores|control_groups|error_file|file_descriptor|job_page|process_status|rank_progress|system_refusal)'
  { sources tools/run
    find core -regextype posix-extended -regex "core/(launch/$launch|process/$process)[.](h|cc)" 2>/dev/null; } |
    search '^ *# *include *(<(torch|ATen|c10)/|"tessera/[^t])' |
    grep -vE "\"tessera/core/(launch/$launch|process/$process)[.]h\"" | offend launcher-without-torch

  # A launcher may meet as ranks do.
  sources core/comm/meeting | search '^ *# *include *<(torch|ATen|c10)/' | offend meeting-without-torch

  for file in $tree; do
    if [[ $file == *.h ]] && ! grep -q '^#pragma once$' "$file"; then echo "$file"; fi
  done | offend pragma-once

  for file in $tree; do
    lines=$(wc -l <"$file")
    if ((lines > 600)); then echo "$file: $lines lines, at most 600"; fi
  done | offend file-size

  # 24 s of compilation for everyone who includes such a header.
  sources include core | grep '\.h$' | grep -v '/tessera\.h$' | search '# *include *[<"]torch/(torch|all|nn|extension)\.h' |
    offend torch-in-core-header

  # A strategy is a row in a table: a second switch on it would be a code path.
  switches=$(grep -v '^tests/' <<<"$tree" | search 'case +Strategy::' | cut -d: -f1 | sort -u)
  if (($(wc -l <<<"$switches") > 1)); then echo $switches | offend one-strategy-switch; fi

  search '(^|[^_a-zA-Z.>])(std::)?_?(exit|quick_exit|_Exit)\(' <<<"$library" |
    grep -vE '^[^:]*:[0-9]+: *//' |
    grep -v '^core/comm/mpi/progress.cc:[0-9]*:    std::_Exit(1);' |  # the process ends already
    grep -vE '^core/launch/(rank_process|watcher).cc:[0-9]*:.* _exit\([0-9]+\);' |  # a child's half of fork()
    offend library-calls-exit

  search '(std::j?thread[({]|make_unique<std::thread>[(][[])' <<<"$library" |
    grep -v '^core/process/thread_without_signals[.]h:' | offend thread-with-signals

  # An exception that nobody catches is printed with its type, so that has to be a public one.
  grep -v '^include/' <<<"$library" | search '^ *(class|struct) .*: *(public +)?(c10|std|tessera)?(::)?[A-Za-z_]*([Ee]rror|[Ee]xception)\b' |
    offend internal-exception

  # Debian's Abseil is not instrumented: the thread sanitizer cannot see its mutexes.
  search 'absl/synchronization/' <<<"$tree" | offend no-absl-mutex
}

offences=$(check)
[[ -z $offences ]] || { echo "$offences"; exit 1; }
