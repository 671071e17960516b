#!/usr/bin/env bash
# Checks that every source is formatted like `make format` and prints the files that are not.
# Versions of clang-format disagree, so only Debian 12's is used: without it this says so and checks
# nothing, and ctest reports the test as skipped.
#   check_format.sh <root of the tree>
set -uo pipefail
cd "$1" || exit 2

wanted=14
found=none
for program in clang-format-$wanted clang-format; do
  found=$("$program" --version 2>/dev/null) || continue
  [[ $found != *"version $wanted."* ]] || break
done
if [[ $found != *"version $wanted."* ]]; then
  echo "formatting was NOT checked: it needs clang-format $wanted, got ${found:-none}" \
    "(cmake/bootstrap.sh format)"
  exit 77
fi

for folder in include core optim ddp fsdp zero data checkpoint tools examples bench tests; do
  [[ ! -d $folder ]] || find "$folder" \( -name '*.h' -o -name '*.cc' \) -print0
done | xargs -0 -r -n 50 "$program" --dry-run -Werror
