#!/usr/bin/env bash
# Run the official MCP server conformance suite against a URL and print pass/fail per scenario.
#
#   run_suite.sh URL [WORKDIR] [REVISION ...]
#     URL       e.g. http://127.0.0.1:8080/mcp     (host must be localhost/127.0.0.1 for the
#               dns-rebinding-protection scenario to mean anything)
#     WORKDIR   where the suite and its results live     (default: /tmp/mcp-conformance)
#     REVISION  requirement sets to run                  (default: 2025-11-25 2026-07-28)
#
# Environment:
#   CONFORMANCE_VERSION  npm version of the suite        (default: 0.2.0-alpha.12; dist-tag
#                        "latest" = 0.1.16 knows nothing of 2026-07-28)
#   SCENARIO             run one scenario only           (then REVISION is used as --spec-version)
#   TIMEOUT_MS           per-scenario timeout            (default: 30000)
#   AUTH_HEADER          "Name: value" sent on every request through header_proxy.py
#                        (the suite itself cannot send auth headers)
#   CONFORMANCE_SUITE    the installed suite's dist/index.js; nothing is installed then
#   CONFORMANCE_NODE     the node (>= 22) to run it with; nothing is installed then
#   ALSO_URL             a second node's URL: requests go to both in turn (needs AUTH_HEADER)
#   JSON_OUT             also write the merged summary as JSON to this path
#
# Exit status: 0 = every SCORED scenario passed, 1 = some failed, 2 = could not run.
set -u
URL="${1:?usage: run_suite.sh URL [WORKDIR] [REVISION ...]}"; shift
WORK="${1:-/tmp/mcp-conformance}"; [ $# -gt 0 ] && shift
REVS=("$@"); [ ${#REVS[@]} -eq 0 ] && REVS=(2025-11-25 2026-07-28)
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
VER="${CONFORMANCE_VERSION:-0.2.0-alpha.12}"
mkdir -p "$WORK" && cd "$WORK" || exit 2

# The suite imports fs.globSync, so it needs Node >= 22; npm's "node" package carries a binary.
NODE="${CONFORMANCE_NODE:-node}"
if ! "$NODE" -e 'process.exit(+process.versions.node.split(".")[0] >= 22 ? 0 : 1)' 2>/dev/null; then
  if [ ! -x "$WORK/node22/node_modules/node/bin/node" ]; then
    mkdir -p node22 && (cd node22 && { [ -f package.json ] || npm init -y >/dev/null 2>&1; } &&
      npm i --no-audit --no-fund --loglevel=error node@22 >/dev/null 2>&1)
  fi
  NODE="$WORK/node22/node_modules/node/bin/node"
fi
"$NODE" --version >/dev/null 2>&1 || { echo "no usable Node >= 22" >&2; exit 2; }

SUITE="$WORK/suite-$VER"
JS="${CONFORMANCE_SUITE:-$SUITE/node_modules/@modelcontextprotocol/conformance/dist/index.js}"
if [ ! -f "$JS" ]; then
  mkdir -p "$SUITE" && (cd "$SUITE" && { [ -f package.json ] || npm init -y >/dev/null 2>&1; } &&
    npm i --no-audit --no-fund --loglevel=error "@modelcontextprotocol/conformance@$VER" >/dev/null 2>&1)
fi
[ -f "$JS" ] || { echo "could not install @modelcontextprotocol/conformance@$VER" >&2; exit 2; }

TARGET="$URL"
if [ -n "${AUTH_HEADER:-}" ]; then
  PORTFILE="$(mktemp)"
  python3 "$HERE/header_proxy.py" --target "$URL" ${ALSO_URL:+--target "$ALSO_URL"} --header "$AUTH_HEADER" --port-file "$PORTFILE" &
  PROXY_PID=$!
  trap 'kill $PROXY_PID 2>/dev/null' EXIT
  for _ in $(seq 50); do [ -s "$PORTFILE" ] && break; sleep 0.1; done
  TARGET="$(python3 -c 'import sys,urllib.parse as u; p=u.urlsplit(sys.argv[1]); print("http://127.0.0.1:"+open(sys.argv[2]).read().strip()+p.path)' "$URL" "$PORTFILE")"
fi

RUN="$WORK/results/$(date +%Y%m%dT%H%M%S)-$$"; mkdir -p "$RUN"
for REV in "${REVS[@]}"; do
  "$NODE" "$JS" list --requirements "$REV" >"$RUN/$REV.required.txt" 2>&1
  if [ -n "${SCENARIO:-}" ]; then
    SEL=(--scenario "$SCENARIO" --spec-version "$REV")
  else
    SEL=(--requirements "$REV")
  fi
  "$NODE" "$JS" server --url "$TARGET" "${SEL[@]}" --timeout "${TIMEOUT_MS:-30000}" \
    -o "$RUN/$REV" >"$RUN/$REV.log" 2>&1
done
python3 "$HERE/summarise.py" "$RUN" "${REVS[@]}" ${JSON_OUT:+--json "$JSON_OUT"}
