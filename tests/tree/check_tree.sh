#!/usr/bin/env bash
# Checks what no compiler does: the direction of the includes and the size of
# the rooms. Prints every offence; fails if there is one.
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

# folder: what its quoted includes may begin with.
own() { echo "tessera/($(tr ' ' '|' <<<"$1"))[/\"]|(absl|gtest|gmock|benchmark|nlohmann)/"; }
include_rules() {
  local core=core optim='core optim' ddp='core optim ddp' fsdp='core optim fsdp'
  local zero='core optim ddp fsdp zero' checkpoint='core optim ddp fsdp zero checkpoint'
  cat <<LIST
core:$core
optim:$optim
ddp:$ddp
fsdp:$fsdp
zero:$zero
checkpoint:$checkpoint
tools:$checkpoint tools
examples:$checkpoint examples tessera.h
bench:$checkpoint examples bench tessera.h
tests:$checkpoint tools examples tests tessera.h
LIST
}

check() {
  local folder allowed file lines switches
  local library tree
  library=$(sources core optim ddp fsdp zero checkpoint)
  tree=$(sources core optim ddp fsdp zero checkpoint tools examples bench tests; ls ./*.h 2>/dev/null)

  while IFS=: read -r folder allowed; do
    sources "$folder" | search '^ *# *include *"' |
      grep -vE "include *\"($(own "$allowed"))" | offend include-direction
  done < <(include_rules)

  # The launcher starts in milliseconds: it must not load LibTorch.
  # With the ranks it shares three files, which keep to that.
  { sources tools/run; ls core/comm/{job_page,process_status}.{h,cc} core/comm/file_descriptor.h; } |
    search '^ *# *include *(<(torch|ATen|c10)/|"tessera/[^t])' |
    grep -vE '"tessera/core/comm/(file_descriptor|job_page|process_status).h"' | offend launcher-without-torch

  for file in $tree; do
    if [[ $file == *.h ]] && ! grep -q '^#pragma once$' "$file"; then echo "$file"; fi
  done | offend pragma-once

  for file in $tree; do
    lines=$(wc -l <"$file")
    if ((lines > 400)); then echo "$file: $lines lines, at most 400"; fi
  done | offend file-size

  # 24 s of compilation for everyone who includes a core header.
  sources core | grep '\.h$' | search '# *include *[<"]torch/(torch|all|nn|extension)\.h' |
    offend torch-in-core-header

  # A strategy is a row in a table: a second switch on it would be a code path.
  switches=$(grep -v '^tests/' <<<"$tree" | search 'case +Strategy::' | cut -d: -f1 | sort -u)
  if (($(wc -l <<<"$switches") > 1)); then echo $switches | offend one-strategy-switch; fi

  search '(^|[^_a-zA-Z.>])(std::)?_?(exit|quick_exit|_Exit)\(' <<<"$library" |
    grep -vE '^[^:]*:[0-9]+: *//' | offend library-calls-exit

  # Debian's Abseil is not instrumented: the thread sanitizer cannot see its mutexes.
  search 'absl/synchronization/' <<<"$tree" | offend no-absl-mutex
}

offences=$(check)
[[ -z $offences ]] || { echo "$offences"; exit 1; }
