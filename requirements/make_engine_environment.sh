#!/bin/sh
# The environment of an engine that is no dependency of development: sh make_engine_environment.sh ray|flower [PYTHON].
# It becomes .venv-ray or .venv-flower beside .venv, from the engine's own lock, and holds the engine, this checkout and
# what its tests need.
set -eu
engine=${1:?expected ray or flower}
python=${2:-python3}
cd "$(dirname "$0")/.."
lock=requirements/$engine.txt
[ -f "$lock" ] || { echo "expected ray or flower, got $engine" >&2; exit 2; }
place=.venv-$engine
"$python" -m venv --clear "$place"
"$place/bin/pip" install --quiet --require-hashes --only-binary :all: --requirement "$lock"
sh requirements/install_torch.sh "$place/bin/pip"
"$place/bin/pip" install --quiet --no-index --no-deps --no-build-isolation --editable .
touch "$place/.installed"
