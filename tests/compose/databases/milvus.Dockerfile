# A stand-in of milvusdb/milvus (tests/compose/base_images): the server in the wheel of requirements/milvus.txt.
FROM nginx:1.30
COPY bin /milvus/bin
COPY lib /milvus/lib
COPY configs /milvus/configs
COPY --chmod=755 milvus /usr/local/bin/
WORKDIR /milvus
LABEL conch.stand-in=true
ENTRYPOINT []
CMD ["milvus"]
