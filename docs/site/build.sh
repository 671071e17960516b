#!/usr/bin/env bash
# Makes the site in build/docs/html: every warning of Doxygen or Sphinx and every link that leads
# nowhere is an error. Needs the packages of `cmake/bootstrap.sh docs`.
set -euo pipefail
cd "$(dirname "$0")/../.."

html=build/docs/html
rm -rf "$html" build/docs/xml
mkdir -p build/docs
doxygen docs/site/Doxyfile
# Debian's Sphinx is the system's Python's; -E: what it kept would be older than Doxygen's output.
/usr/bin/python3 -B -m sphinx -q -E -W --keep-going -j "${JOBS:-1}" -d build/docs/doctrees -c docs/site . "$html"
cp "$html/README.html" "$html/index.html"
rm -f "$html"/{objects.inv,.buildinfo}
docs/site/check_site.py "$html"
