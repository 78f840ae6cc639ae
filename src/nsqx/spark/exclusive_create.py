"""Exclusive creation of a file on remote storage: it fails if the file exists. Leases depend on it.

pyarrow has no such call, so each kind of storage has its own:

    S3               PUT with If-None-Match: *, sent by botocore
    HDFS             a rename, which fails if the target exists
    all others       fsspec's pipe_file with mode "create"

Some stores accept such a request and overwrite the file nevertheless. A trial with a temporary file detects them.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow.fs as pafs

from nsqx.errors import ConfigError

CreateOnce = Callable[[str, bytes], bool]
"""Creates a file at a path with this content; returns False if the file exists."""

_S3_ATTEMPTS = 6


def exclusive_creation(uri: str, filesystem: pafs.FileSystem, folder: str) -> CreateOnce:
    """Return the function that creates files exclusively; raises ConfigError if a trial in ``folder`` fails."""
    create_once = _creation_of(uri, filesystem)
    path = f"{folder}/once-{uuid.uuid4().hex}"
    try:
        is_exclusive = create_once(path, b"1") and not create_once(path, b"2")
    except (OSError, NotImplementedError, TypeError, ValueError) as error:
        raise _refused(uri, str(error)) from error
    with contextlib.suppress(FileNotFoundError):
        filesystem.delete_file(path)
    if not is_exclusive:
        raise _refused(uri, "it overwrites existing files instead of refusing to")
    return create_once


def _creation_of(uri: str, filesystem: pafs.FileSystem) -> CreateOnce:
    if filesystem.type_name == "s3":
        return _s3_creation(uri)
    if filesystem.type_name == "hdfs":
        return _rename_creation(filesystem)
    return _fsspec_creation(uri, filesystem)


def _refused(uri: str, reason: str) -> ConfigError:
    return ConfigError(
        f"nsq: segmentDir {uri} cannot be locked against other queries ({reason}): use storage with conditional writes,"
        " such as s3:// or hdfs://, or a mounted directory with segmentDirIsShared"
    )


def _s3_creation(uri: str) -> CreateOnce:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise ConfigError(
            f"nsq: segmentDir {uri} needs botocore for conditional writes: pip install 'nsqx[s3]'"
        ) from None
    client = _s3_client(uri)

    def create_once(path: str, content: bytes) -> bool:
        bucket, _, key = path.partition("/")
        for attempt in range(1, _S3_ATTEMPTS + 1):
            try:
                client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
                return True
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == 412:
                    return False
                # 409: another request for the same key was in progress, and S3 decided nothing.
                if status != 409 or attempt == _S3_ATTEMPTS:
                    raise OSError(f"{path}: {error}") from error
                time.sleep(0.05 * attempt)
            except BotoCoreError as error:
                raise OSError(f"{path}: {error}") from error
        raise AssertionError("unreachable")

    return create_once


def _s3_client(uri: str) -> Any:
    """Return a client for the store that pyarrow uses for the same URI."""
    import botocore.session
    from botocore.config import Config

    parts = urlsplit(uri)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    given: dict[str, Any] = {"region_name": query.get("region")}
    endpoint = query.get("endpoint_override", "")
    if endpoint:
        given["endpoint_url"] = endpoint if "://" in endpoint else f"{query.get('scheme', 'https')}://{endpoint}"
    if parts.username and parts.password:
        given["aws_access_key_id"] = unquote(parts.username)
        given["aws_secret_access_key"] = unquote(parts.password)
    settings: dict[str, Any] = {"retries": {"mode": "standard", "total_max_attempts": _S3_ATTEMPTS}}
    if endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        # Few stores other than Amazon's have a host name for each bucket.
        settings["s3"] = {"addressing_style": "path"}
    session = botocore.session.get_session()
    if given["region_name"] is None and session.get_config_variable("region") is None:
        given["region_name"] = "us-east-1"
    return session.create_client("s3", config=Config(**settings), **given)


def _rename_creation(filesystem: pafs.FileSystem) -> CreateOnce:
    def create_once(path: str, content: bytes) -> bool:
        beside = f"{path}.{uuid.uuid4().hex}.tmp"
        with filesystem.open_output_stream(beside) as stream:
            stream.write(content)
        try:
            filesystem.move(beside, path)
        except OSError:
            filesystem.delete_file(beside)
            if filesystem.get_file_info(path).type == pafs.FileType.NotFound:
                raise
            return False
        return True

    return create_once


def _fsspec_creation(uri: str, filesystem: pafs.FileSystem) -> CreateOnce:
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, pafs.FSSpecHandler):
        target = handler.fs
    else:
        try:
            import fsspec

            target = fsspec.filesystem(uri.partition("://")[0])
        except (ImportError, ValueError, OSError) as error:
            raise _refused(uri, f"pyarrow has no conditional writes, and fsspec failed: {error}") from None

    def create_once(path: str, content: bytes) -> bool:
        try:
            target.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        return True

    return create_once
