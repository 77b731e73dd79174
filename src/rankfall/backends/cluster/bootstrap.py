"""What a container starts with: a few lines of ``sh`` that look for a Python and become the wrapper.

Plain POSIX (dash, busybox). A Python that is too old, or that lacks zlib and could not open the bundle, is passed over. Without any, the
command runs plainly and standard error says so; what cannot be done plainly (several ranks in a slot, ``inside: require``) ends the
container with the exit code of cause ``platform`` instead of doing something else.
"""

from __future__ import annotations

from typing import Final

from rankfall.backends.cluster.text import NODE_REFERENCE
from rankfall.model.exit_codes import CAUSE_CODES

BUNDLE_PATH: Final = "/rankfall/inside.pyz"
_REFUSED: Final = CAUSE_CODES["platform"]

# Arguments: the wrapper's own, then --, then the command. The options' values never are "--".
BOOTSTRAP: Final = f"""\
say() {{ echo "rankfall: $1" >&2; }}
for python in "${{RANKFALL_PYTHON-}}" python3 python; do
  [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
  "$python" -I -S -c 'import sys, zlib; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 || continue
  exec "$python" -I -S {BUNDLE_PATH} "$@"
done
if [ "${{RANKFALL_INSIDE-}}" = require ]; then
  say "no Python 3.8 or newer in this image, and inside: require asks for one; name it in \\$.python"
  exit {_REFUSED}
fi
launcher=exec nproc=1
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --launcher) launcher=$2 ;;
    --nproc) nproc=$2 ;;
    --chdir) cd "$2" || exit {_REFUSED} ;;
    --code)
      say "no Python 3.8 or newer in this image, which unpacks the job's code; name one in \\$.python, or use kubernetes.workspace"
      exit {_REFUSED}
      ;;
  esac
  shift
done
[ $# -eq 0 ] || shift
for word in "$@"; do
  if [ "$word" = '{NODE_REFERENCE}' ]; then
    say "no Python 3.8 or newer in this image, which works out the place of this slot among all roles; name one in \\$.python"
    exit {_REFUSED}
  fi
done
case $launcher in
  auto | plain)
    if [ "$nproc" -gt 1 ]; then
      say "no Python 3.8 or newer in this image, so $nproc ranks cannot be started here; name one in \\$.python, or use launcher exec"
      exit {_REFUSED}
    fi
    slot="${{RANKFALL_INDEX:-${{RANKFALL_SLOT:-0}}}}" nodes="${{RANKFALL_PLAIN_NNODES:-1}}"
    export RANK="$((${{RANKFALL_FIRST_RANK:-0}} + slot))" GROUP_RANK="$((${{RANKFALL_FIRST_NODE:-0}} + slot))"
    export ROLE_RANK="$slot" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE="$nodes"
    export WORLD_SIZE="${{RANKFALL_WORLD_SIZE:-$nodes}}" ROLE_WORLD_SIZE="${{RANKFALL_ROLE_SIZE:-$nodes}}"
    export ROLE_NAME="${{RANKFALL_ROLE-}}"
    ;;
esac
say "no Python 3.8 or newer in this image: the command runs plainly, and what is seen of it comes from outside only"
unset RANKFALL_TOKEN RANKFALL_TORCHRUN
exec "$@"
"""
