#!/bin/sh
# Installs the harness's own environment and the peers under $BENCH_HOME (default /tmp/trunkline-bench).
# `install_peers.sh base` installs the environment only, `install_peers.sh npm` that and the peers of npm.
# Needs uv, Node 20 and, for nginx-static, Debian's nginx-light. Takes about a minute.
set -eu
home=${BENCH_HOME:-/tmp/trunkline-bench}
mkdir -p "$home/npm"
cd "$home"
venv() {
    name=$1; shift
    [ -d "$name" ] || uv venv -q --python 3.11 "$name"
    uv pip install -q --python "$name/bin/python" "$@"
}
venv base uvloop httptools orjson msgspec psutil uvicorn granian starlette fastapi sse-starlette anyio mcp py-spy
[ "${1:-}" = base ] && exit
if [ "${1:-}" != npm ]; then
    venv mcpproxy mcp-proxy uvloop httptools
    venv fastmcp fastmcp uvloop httptools
    venv cf mcp-contextforge-gateway uvloop httptools
fi
cd npm
[ -f package.json ] || npm init -y >/dev/null
npm install --no-audit --no-fund supergateway mcp-proxy mcp-hub
