# A server of indexes in /indexes; docs/running.md says how to run it.
FROM python:3.12-slim
WORKDIR /opt/aveyb-retrieval
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY aveyb_retrieval ./aveyb_retrieval
RUN pip install --no-cache-dir -c constraints.txt '.[cpu,files,server]' \
    && useradd --create-home --uid 10001 aveyb \
    && install -d -o aveyb /indexes
USER aveyb
WORKDIR /home/aveyb
ENV HF_HUB_OFFLINE=1
VOLUME /indexes
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["aveyb-serve"]
CMD ["/indexes/main", "--host", "0.0.0.0", "--api-key-file", "/run/secrets/api-key"]
