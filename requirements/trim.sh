#!/bin/sh
# Take out of a folder of installed packages what nobody reads who runs them: sh trim.sh SITE-PACKAGES. Their tests,
# programs of torch's tests, types for editors, and what only a compiler needs.
set -eu
cd "$1"
find . -type d -name tests -prune -exec rm -r {} +
find . -type f '(' -name '*.pyi' -o -name '*.a' ')' -delete
rm -rf torch/bin/test_* torch/bin/*Test* torch/bin/protoc* torch/include torch/share torch/test
