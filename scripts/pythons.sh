#!/bin/sh
# Finds the other Pythons that the tests of rankfall_inside start: prints "VERSION PATH" a line for each one found.
# Looks on PATH and into pyenv. A name on PATH may be a shim that fails, so each is started. Exit 1 when one is missing.
#   scripts/pythons.sh 3.9 3.13
set -u

[ $# -gt 0 ] || set -- 3.9 3.13
missing=0
for version in "$@"; do
    found=
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        said=$("$candidate" -c 'import sys; print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], sys.executable))' 2>/dev/null) || continue
        if [ "${said%% *}" = "$version" ]; then
            found=${said#* }
            break
        fi
    done
    if [ -n "$found" ]; then
        echo "$version $found"
    else
        echo "no Python $version found: install it (pyenv install $version, or your distribution's python$version), then run the tests again" >&2
        missing=1
    fi
done
exit $missing
