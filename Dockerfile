# Two images from one file:
#   docker build -t trunkline .                        Python backends
#   docker build -t trunkline:node --target node .     and npx, git
# Run it with a demo server:
#   docker run --rm -p 127.0.0.1:8080:8080 -v trunkline:/data trunkline serve --demo
# Runs as uid 10001 on a read-only root; all persistent files are under /data.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/trunkline
COPY requirements.lock /tmp/
RUN /opt/trunkline/bin/pip install --require-hashes --only-binary :all: -r /tmp/requirements.lock
# Copied rather than built into a wheel: the build backend is in no lock file.
COPY app /opt/trunkline/src/app
COPY migrations /opt/trunkline/src/migrations
COPY deploy/image/trunkline /opt/trunkline/bin/trunkline
RUN echo /opt/trunkline/src > "$(/opt/trunkline/bin/python -c 'import site; print(site.getsitepackages()[0])')/trunkline.pth" \
    && /opt/trunkline/bin/python -m compileall -q /opt/trunkline/src

FROM node:24-bookworm-slim AS nodejs

FROM python:3.11-slim-bookworm AS base
# tini is PID 1: it forwards signals and reaps orphans. bubblewrap and setpriv (util-linux) are for the sandbox of backends.
# No versions: Debian stable only changes by security fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap ca-certificates tini util-linux \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 trunkline \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin trunkline \
    && install -d -o 10001 -g 10001 -m 700 /data
COPY --from=build /opt/trunkline /opt/trunkline
ENV PATH=/opt/trunkline/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRUNKLINE_HOST=0.0.0.0 \
    TRUNKLINE_DATA_DIR=/data
VOLUME /data
WORKDIR /data
EXPOSE 8080
ENTRYPOINT ["/usr/bin/tini", "--", "trunkline"]
CMD ["serve"]

FROM base AS node
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
COPY --from=nodejs /usr/local/bin/node /usr/local/bin/node
COPY --from=nodejs /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
USER 10001:10001
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trunkline (with node)" \
    org.opencontainers.image.description="A multi-tenant remote MCP gateway, with node, npx and git for its backends" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"

FROM base AS gateway
USER 10001:10001
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Trunkline" \
    org.opencontainers.image.description="A multi-tenant remote MCP gateway" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
