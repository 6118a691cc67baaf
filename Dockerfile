# docker build -t sparsed .
# docker run -p 7470:7470 -p 7471:7471 -v sparsed-data:/var/lib/sparsed sparsed

FROM debian:12-slim AS build
WORKDIR /src
COPY deploy/packages.txt deploy/install-packages deploy/
RUN deploy/install-packages build && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DSPARSED_BUILD_TESTS=OFF -DSPARSED_BUILD_BENCH=OFF \
      -DCMAKE_INSTALL_PREFIX=/usr/local \
    && cmake --build --preset release \
    && DESTDIR=/install cmake --install build/release --strip

FROM debian:12-slim
LABEL org.opencontainers.image.title="sparsed" \
      org.opencontainers.image.description="Remote sparse compute: upload a matrix once, multiply many times" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY deploy/packages.txt deploy/install-packages /tmp/deploy/
RUN /tmp/deploy/install-packages runtime && rm -rf /tmp/deploy /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-log-init --home-dir /var/lib/sparsed --create-home sparsed
COPY --from=build /install/usr/local/bin/ /usr/local/bin/
USER sparsed
VOLUME /var/lib/sparsed
EXPOSE 7470 7471
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["sparsectl", "stats", "--json"]
ENTRYPOINT ["sparsed", "--listen=0.0.0.0:7470", "--metrics-listen=0.0.0.0:7471", \
            "--data-dir=/var/lib/sparsed"]
