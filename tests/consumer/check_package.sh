#!/usr/bin/env bash
# Makes a package, unpacks it into an empty folder and uses it as a user would.
#   check_package.sh <TGZ or DEB> <build folder> <scratch of check_install.sh> <cmake> <cpack>
# The consumer is configured and linked again but not compiled: check_install.sh compiled it with
# headers at the same path, and the package's files must equal the ones installed there.
set -euo pipefail
generator=$1 build=$2 scratch=$3 cmake=$4 cpack=$5
here=$(cd "$(dirname "$0")" && pwd)
package=$scratch/$generator root=$scratch/$generator/root
die() { echo "$generator: $*"; exit 1; }

if [[ $generator == DEB ]] && ! command -v dpkg-deb >/dev/null; then
  [[ ! -e /etc/debian_version ]] || die "no dpkg-deb, though this is Debian or made from it"
  echo "the .deb was NOT checked: this is not Debian or Ubuntu, there is no dpkg-deb"
  exit 77
fi

rm -rf "$package"
mkdir -p "$root"
"$cpack" -G "$generator" --config "$build/CPackConfig.cmake" -B "$package" >"$package/log" 2>&1 ||
  { cat "$package/log"; exit 1; }
if [[ $generator == DEB ]]; then
  deb=$(echo "$package"/*.deb)
  dpkg-deb -x "$deb" "$root"
  prefix=$root/usr extra=$'./share/doc/Tessera/README\n./share/doc/libtessera-dev/copyright'
  cmp "$prefix/share/doc/libtessera-dev/copyright" "$here/../../LICENSE"
  field() { dpkg-deb -f "$deb" "$1"; }
  [[ $(field Package) == libtessera-dev ]] || die "named '$(field Package)'"
  # What find_package and the linker need, and what tessera-run loads.
  for needed in libabsl-dev libsodium-dev libxxhash-dev libstdc++6 libc6; do
    [[ " $(field Depends)," == *" $needed"[,\ ]* ]] || die "Depends lacks $needed: $(field Depends)"
  done
  text=$(field Description)
else
  tar -xzf "$package"/*.tar.gz -C "$root" --strip-components=1
  prefix=$root extra=./share/doc/Tessera/README
  text=$(<"$prefix/share/doc/Tessera/README")
fi
[[ $text == *"LibTorch is not in this package"* ]] || die "does not say so of LibTorch: $text"

# The files are the same; only programs and modules are stripped.
files() { (cd "$1" && find . -type f | sort); }
diff <({ files "$scratch/moved"; echo "$extra"; } | sort) <(files "$prefix") ||
  die "other files than cmake --install copies (<)"
diff -r -x README -x libtessera-dev -x tessera-run -x tessera-checkpoint -x 'libtessera_*.so' "$scratch/moved" "$prefix"
cmp "$prefix/share/doc/Tessera/LICENSE" "$here/../../LICENSE"

# Nothing refers to the machine that made it.
for file in "$prefix"/bin/* $(find "$prefix" -name '*.so'); do
  ! readelf -d "$file" | grep -E 'R(UN)?PATH' || die "$file: a run path"
done
torch=$(sed -n 's/^TESSERA_TORCH:PATH=//p' "$build/CMakeCache.txt")
! grep -rlaF -e "$build/" -e "$(dirname "$(dirname "$here")")/" -e "$torch/" "$prefix" ||
  die "these name a folder of the machine that made the package"

ln -sfn "$prefix" "$scratch/used"
rm -f "$scratch"/build/{CMakeCache.txt,consumer}
env -u TESSERA_TORCH "$cmake" -S "$here" -B "$scratch/build" -G Ninja \
  -DCMAKE_CXX_COMPILER="$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" \
  -DCMAKE_PREFIX_PATH="$scratch/used" -DTESSERA_TORCH="$torch"
"$cmake" --build "$scratch/build"
"$scratch/build/consumer"
"$prefix/bin/tessera-run" --standalone --nproc-per-node 2 "$scratch/build/consumer"
"$prefix/bin/tessera-checkpoint" --help | grep -q '^Usage: tessera-checkpoint'
