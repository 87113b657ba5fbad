# A stand-in of mongo:8 (tests/compose/base_images): mongoeco on Debian's Python 3.13.
FROM scratch
ADD trixie.tar /
COPY site /opt/stand-in/site
COPY mongo_server.py /opt/stand-in/
COPY --chmod=755 mongosh /usr/local/bin/
COPY --chmod=755 mongo-entrypoint /docker-entrypoint.sh
ENV PYTHONPATH=/opt/stand-in/site PYTHONDONTWRITEBYTECODE=1
LABEL conch.stand-in=true
VOLUME ["/data/db", "/data/configdb"]
ENTRYPOINT ["/docker-entrypoint.sh"]
CMD ["mongod"]
