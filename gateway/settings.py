"""The gateway's settings, from environment variables that start with CONCH_."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .explanations import explained


def _proxy(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s/]+/?", value):
        raise ValueError(f" {value!r} is not the address of a proxy such as http://proxy:3128")
    return value


class Environment(BaseSettings):
    """Each field is the variable CONCH_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="CONCH_", extra="ignore")

    @classmethod
    def of(cls, program: str) -> Self:
        """Return the settings; the process ends with a sentence where one is not valid."""
        try:
            return cls()
        except ValidationError as error:
            row = error.errors()[0]
            missing = row["type"] == "missing"
            told = " is not set; set it" if missing else f"{explained([row])}; change it, or unset it"
            sys.exit(f"{program}: CONCH_{str(row['loc'][0]).upper()}{told}")


class Address(Environment):
    """Where the gateway listens, if not on a socket."""

    gateway_host: str = Field("127.0.0.1", description="address on which it listens")
    gateway_port: int = Field(8090, gt=0, lt=65536, description="port on which it listens")


class Settings(Environment):
    """What the gateway does."""

    deployment: Path = Field(description="deployment.json, written by the plan: pools and instances")
    kserve_url: str = Field(
        "http://127.0.0.1:8079",
        pattern=r"^(http://[^/@\s]+:\d{1,5}/?|unix:.+)$",
        description="nginx's internal KServe listener: http://HOST:PORT, or unix:PATH",
    )
    gateways: int = Field(
        1,
        gt=0,
        description="gateway processes that share the deployment; each admits its part of the requests",
    )
    api_keys_file: Path | None = Field(
        None, description="file with API keys, one per line; if empty, no key is required"
    )
    api_keys_required: str = Field("", description="if not empty: refuse to start without a key")
    admin_keys_required: str = Field("", description="the same for admin keys")
    admin_keys_file: Path | None = Field(
        None,
        description="file with admin keys, which may restart instances, one per line; if empty, restarts are "
        "disabled",
    )
    max_upload_bytes: int = Field(100_000_000, gt=0, description="largest audio file")
    max_audio_seconds: float = Field(4 * 3600, gt=0, description="longest recording")
    decode_seconds: float = Field(120, gt=0, description="time limit for decoding one file")
    request_seconds: float = Field(300, gt=0, description="time limit for one call to Triton")
    windows_at_once: int = Field(4, gt=0, description="windows of one long recording in flight")
    recordings_per_instance: int = Field(
        0,
        ge=0,
        description="concurrent recordings for each instance; more are refused with 503; 0: as many as its "
        "engine has rows, at most 32 (openvino: 16, torch and trtllm: 32)",
    )
    generations_per_instance: int = Field(
        64, gt=0, description="concurrent texts (times beams) for each instance; more are refused with 503"
    )
    embeddings_per_instance: int = Field(
        64,
        gt=0,
        description="concurrent requests for embeddings for each instance; one with many inputs counts as up "
        "to four for each instance; one more is a 503",
    )
    embeddings_truncate: bool = Field(
        False,
        description="truncate texts that are too long for their model unless the request says otherwise; "
        "if false, they are refused",
    )
    max_pictures_bytes: int = Field(
        16_000_000,
        gt=0,
        description="largest form with pictures, and largest picture of a vector store; nginx has the same "
        "limit for bodies of embeddings and searches",
    )
    picture_hosts: str = Field(
        "",
        description="hosts (HOST or HOST:PORT, separated by commas) that pictures in messages may be fetched "
        "from; if empty, pictures must be data URLs",
    )
    picture_proxy: Annotated[str, AfterValidator(_proxy)] = Field(
        "",
        description="proxy for fetching them, such as http://proxy:3128; other proxies are not used",
    )
    model_aliases: str = Field(
        "",
        description="names that clients may use for models, as name=model, separated by commas; OpenAI's "
        "names always stand for the first model for speech or embeddings",
    )
    realtime_idle_seconds: float = Field(
        600, gt=0, description="idle time after which a live connection is closed"
    )
    traces_url: str = Field(
        "", description="collector of traces, OTLP over HTTP, such as http://collector:4318"
    )
    traces_sampled: float = Field(
        0.01, ge=0, le=1, description="fraction of requests without a traceparent that are traced"
    )
    realtime_sessions: int = Field(32, gt=0, description="concurrent live connections")
    ready_seconds: float = Field(2, ge=0, description="how long a successful readiness check is cached")
    documents_url: str = Field(
        "", description="the document database of /v1/files: sqlite:PATH or mongodb://…; empty: no retrieval"
    )
    mongo_password_file: Path | None = Field(None, description="file with MongoDB's password")
    vectors_url: str = Field(
        "", description="the vector database, Milvus: http://host:19530 or unix:PATH; empty: no retrieval"
    )
    milvus_password_file: Path | None = Field(None, description="file with the password of Milvus' root")
    extract_seconds: float = Field(120, gt=0, description="time limit for reading the text of one file")
    index_wait_seconds: float = Field(
        5, ge=0, description="how long a response waits for a file that is added to a vector store"
    )

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Return `picture_hosts` as a list."""
        return frozenset(host.strip().lower() for host in self.picture_hosts.split(",") if host.strip())
