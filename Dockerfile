# Three images from one file: --target operator | outer-optimizer | learner. Needs BuildKit (DOCKER_BUILDKIT=1).
#
#   DOCKER_BUILDKIT=1 docker build --network=host --target learner -t archipelago-learner:0.1.0 .
#
# BASE      Debian 12 with apt; without a registry: debootstrap --variant=minbase bookworm DIR && tar -C DIR -c . |
#           docker import - debian:bookworm (docs/kubernetes.md)
# PREBUILT  folder inside the context with the programs already built, instead of compiling them here
# PIP_INDEX_URL   another index for the pinned wheels; their hashes are checked whatever it is
ARG BASE=debian:bookworm
ARG PREBUILT=

# Packages, libtorch and the demo's text: everything that changes rarely.
FROM ${BASE} AS prepared
ARG PIP_INDEX_URL
ENV ARCHIPELAGO_CACHE=/opt/archipelago LC_ALL=C
WORKDIR /src
COPY dev ./
COPY third_party third_party
RUN ./dev setup && rm -rf /var/lib/apt/lists/* /root/.cache

FROM prepared AS programs
COPY . .
RUN ./dev build release --target archipelago-operator archipelago-outer-optimizer archipelago-learner \
  && mv build/release/bin /programs

FROM prepared AS programs-prebuilt
ARG PREBUILT
COPY ${PREBUILT} /programs

# Each root holds one program and what it loads.
FROM programs${PREBUILT:+-prebuilt} AS roots
COPY deploy/image_root.py deploy/
COPY LICENSE ./
ENV ROOT="python3 deploy/image_root.py --bin /programs --data data"

FROM roots AS operator-root
RUN $ROOT operator --output /root-of-image

FROM roots AS outer-optimizer-root
RUN $ROOT outer-optimizer --output /root-of-image

FROM roots AS learner-root
RUN $ROOT learner --output /root-of-image --libtorch /opt/archipelago/libtorch-*

FROM scratch AS image
ENV PATH=/usr/bin
USER 65532:65532
STOPSIGNAL SIGTERM
LABEL org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Archipelago trains language models on islands (Decoupled DiLoCo)"

FROM image AS operator
LABEL org.opencontainers.image.title="archipelago-operator"
COPY --from=operator-root /root-of-image/libraries /
COPY --from=operator-root /root-of-image/program /
ENTRYPOINT ["/usr/bin/archipelago-operator"]

FROM image AS outer-optimizer
LABEL org.opencontainers.image.title="archipelago-outer-optimizer"
COPY --from=outer-optimizer-root /root-of-image/libraries /
COPY --from=outer-optimizer-root /root-of-image/program /
ENTRYPOINT ["/usr/bin/archipelago-outer-optimizer"]

FROM image AS learner
LABEL org.opencontainers.image.title="archipelago-learner"
COPY --from=learner-root /root-of-image/libraries /
COPY --from=learner-root /root-of-image/program /
ENTRYPOINT ["/usr/bin/archipelago-learner"]
