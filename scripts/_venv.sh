# Sourced by the other scripts, from the repository's root: makes .venv and installs what a lock file says.
# Does nothing when .venv already holds exactly that lock.

# Where this is set, each of the hundreds of processes that tests start would compile everything it imports anew.
unset PYTHONDONTWRITEBYTECODE

say() { echo "== $*" >&2; }
fail() { echo "error: $*" >&2; exit 1; }

# with_progress WHAT COMMAND...: runs the command. Where stderr is a terminal, a line says after a second what takes so
# long, and for how long; it is removed at the end. The cursor stays at its beginning: what is printed replaces it.
with_progress() {
    what=$1
    shift
    if [ ! -t 2 ] || [ "${TERM:-dumb}" = dumb ]; then
        "$@"
        return
    fi
    width=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
    [ "${width:-0}" -gt 0 ] || width=80
    show_seconds "$what" $((width - 1)) >&2 &
    ticker=$!
    trap 'end_progress; exit 130' INT
    trap 'end_progress; exit 143' TERM
    status=0
    "$@" || status=$?
    end_progress
    trap - INT TERM
    return "$status"
}
end_progress() {
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    printf '\r\033[K' >&2
}
# Ends with this script, whatever ends that.
show_seconds() {
    seconds=0
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 1))
        printf '\r\033[K%.*s\r' "$2" "$1 ($seconds s)"
    done
}

# The interpreter that .venv is made of: $PYTHON, or the first python3 that is new enough.
find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
    done
    fail "needs Python 3.11 or newer ($(python3 -V 2>&1)); on Debian 12: apt-get install python3 python3-venv"
}

# use_venv LOCK: .venv with what LOCK says, and the gateway itself.
use_venv() {
    cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/uv
    mkdir -p "$cache" 2>/dev/null || true
    [ -n "${UV_CACHE_DIR:-}" ] || [ -w "$cache" ] || export UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python) || exit 1
        "$python" -c 'import venv, ensurepip' 2>/dev/null ||
            fail "$python has no venv module; on Debian: apt-get install python3-venv"
        say "making .venv with $("$python" -V)"
        with_progress "making .venv" "$python" -m venv .venv || fail "could not make .venv"
    fi
    stamp=$(cat "$1" pyproject.toml | sha256sum | cut -d' ' -f1)
    held=$(cat ".venv/.installed-$1" 2>/dev/null || true)
    [ "$stamp" = "$held" ] && return
    say "installing $1 into .venv"
    [ -x .venv/bin/uv ] ||
        with_progress "fetching uv" .venv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9' ||
        fail "could not install uv"
    # Compiled now, by one process per core: else each of the first processes would compile what it imports.
    with_progress "fetching and compiling $(grep -c '^[a-z].*==' "$1") packages" \
        .venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python --require-hashes -r "$1" ||
        fail "could not install $1"
    with_progress "installing the gateway" .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -e . ||
        fail "could not install the gateway"
    echo "$stamp" >".venv/.installed-$1"
}
