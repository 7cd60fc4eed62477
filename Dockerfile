# fedarena with compiled kernels: docker build -t fedarena . && docker run --rm -v "$PWD:/data" fedarena run digits
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/fedarena \
 && FEDARENA_KERNEL_BUILDS=all /opt/fedarena/bin/pip install --no-cache-dir --constraint constraints.txt ".[flower,vertical]"

FROM python:3.12-slim
COPY --from=build /opt/fedarena /opt/fedarena
ENV PATH=/opt/fedarena/bin:$PATH
RUN useradd --create-home fedarena
USER fedarena
WORKDIR /data
ENTRYPOINT ["fedarena"]
CMD ["--help"]
