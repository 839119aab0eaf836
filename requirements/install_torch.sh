#!/bin/sh
# The pinned torch, without a hash because its build varies with its index: sh install_torch.sh PIP..., with the words
# that call the pip of the place that it goes to.
#   TORCH_BUILD=cpu      by default: the build without CUDA where pip finds one, else whatever the ordinary index has
#   TORCH_BUILD=cu130    that build, or an error
#   TORCH_INDEX=URL      one more place where pip looks
set -eu
pin=$(grep -o '^torch==[0-9.]*' "$(dirname "$0")/torch.txt")
install() { "$@" install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch"; }
torch="$pin+${TORCH_BUILD:-cpu}"
install "$@" && exit 0
[ "${TORCH_BUILD:-cpu}" = cpu ] || exit 1
echo "torch: pip finds no CPU build ($torch). Taking the ordinary one: on x86 that is the one with CUDA, which works" >&2
echo "torch: without a GPU and takes several GB more. With TORCH_INDEX=URL, the index that PyTorch's own page names for" >&2
echo "torch: CPU, it is the small one." >&2
torch=$pin
install "$@"
