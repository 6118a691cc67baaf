# docker build -t sparsed .
# docker run -p 127.0.0.1:7470:7470 -p 127.0.0.1:7471:7471 -v sparsed-data:/var/lib/sparsed sparsed
#
# Without 127.0.0.1 Docker lets other machines in, past the host's firewall, and they may do everything.
# With kernels for NVIDIA's GPUs (the host needs the driver and the NVIDIA Container Toolkit):
# docker build -t sparsed:cuda --build-arg GPU=cuda .
# docker run --gpus all -p 127.0.0.1:7470:7470 -p 127.0.0.1:7471:7471 -v sparsed-data:/var/lib/sparsed sparsed:cuda

# cuda or none.
ARG GPU=none
# Where nvcc comes from; only fetched with GPU=cuda. Its glibc must not be newer than Debian 12's.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu22.04

FROM ${CUDA_IMAGE} AS cuda

FROM debian:12-slim AS build-none

FROM debian:12-slim AS build-cuda
COPY --from=cuda /usr/local/cuda/ /usr/local/cuda/

# hadolint ignore=DL3006
FROM build-${GPU} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# What the kernels are built for, as CMAKE_CUDA_ARCHITECTURES; a card's compute capability without
# its dot, such as 90-real, builds in a third of the time.
ARG CUDA_ARCHITECTURES="80-real;90-real;90-virtual"
ARG GPU
WORKDIR /src
COPY deploy/packages.txt deploy/install-packages deploy/
RUN deploy/install-packages build && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DSPARSED_BUILD_TESTS=OFF -DSPARSED_BUILD_BENCH=OFF \
      -DCMAKE_INSTALL_PREFIX=/usr/local "-DSPARSED_CUDA_ARCHITECTURES=$CUDA_ARCHITECTURES" \
    && cmake --build --preset release \
    && DESTDIR=/install cmake --install build/release --strip \
    # An image for GPUs that has no kernels for them is no image.
    && { [ "$GPU" = none ] || build/release/server/sparsed --version | grep 'GPU kernels: CUDA'; }

FROM debian:12-slim
LABEL org.opencontainers.image.title="sparsed" \
      org.opencontainers.image.description="Remote sparse compute: upload a matrix once, multiply many times" \
      org.opencontainers.image.licenses="Apache-2.0"
# Of the driver, the container toolkit brings what computes. Which cards, whoever starts it says.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY deploy/packages.txt deploy/install-packages /tmp/deploy/
RUN /tmp/deploy/install-packages runtime && rm -rf /tmp/deploy /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-log-init --home-dir /var/lib/sparsed --create-home sparsed
COPY --from=build /install/usr/local/bin/ /usr/local/bin/
COPY --from=build /install/usr/local/lib/sparsed/ /usr/local/lib/sparsed/
COPY --from=build /install/usr/local/share/sparsed/ /usr/local/share/sparsed/
USER 10001
VOLUME /var/lib/sparsed
EXPOSE 7470 7471
STOPSIGNAL SIGTERM
# Of whoever asks, also where clients need certificates and tokens.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7471 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ code _ <&3 && [ \"$code\" = 200 ]"]
# Who reaches the container is whom its network lets in. To know them by themselves, give the
# container another entry point, without --insecure and with --access-file, --tls-certificate and
# --tls-key (docs/operations.md, Container).
ENTRYPOINT ["sparsed", "--insecure", "--listen=0.0.0.0:7470", "--metrics-listen=0.0.0.0:7471", \
            "--data-dir=/var/lib/sparsed"]
