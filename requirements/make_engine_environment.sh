#!/bin/sh
# The environment of an engine that is no dependency of development, or of the aggregator's servers:
#   sh make_engine_environment.sh ray|flower|storage|site [PYTHON]
# It becomes .venv-ray, .venv-flower or .venv-storage beside .venv, from a lock of its own, and holds the engine or what
# reaches the servers, this checkout and what its tests need.
set -eu
engine=${1:?expected ray, flower, storage or site}
python=${2:-python3}
cd "$(dirname "$0")/.."
lock=requirements/$engine.txt
[ -f "$lock" ] || { echo "expected ray, flower, storage or site, got $engine" >&2; exit 2; }
place=.venv-$engine
"$python" -m venv --clear "$place"
# What .venv has in the same version is linked, where it has some for this Python: pip then needs to bring the rest alone.
packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ours=".venv${packages##*"$place"}"
[ ! -d "$ours" ] || "$place/bin/python" requirements/link_packages.py "$lock" "$ours" "$packages"
# Not compiled, which took half of the time: Python compiles what is imported.
"$place/bin/pip" install --quiet --no-compile --require-hashes --only-binary :all: --requirement "$lock"
# Torch is 14,000 files: those of .venv, where it has some for this Python, are linked; pip then looks whether they are right.
for one in torch torchgen functorch; do
  for found in "$ours/$one" "$ours/$one"-*.dist-info; do
    [ ! -d "$found" ] || cp -al "$found" "$packages/" 2>/dev/null || rm -rf "${packages:?}/${found##*/}"
  done
done
sh requirements/install_torch.sh "$place/bin/pip"
"$place/bin/pip" install --quiet --no-index --no-deps --no-build-isolation --editable .
touch "$place/.installed"
