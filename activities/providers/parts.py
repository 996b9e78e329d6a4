"""Image and file parts of user messages: from the format's four spellings to one."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote_to_bytes

from perdure.activities.providers.failures import cannot_send

if TYPE_CHECKING:
    from perdure.activities.providers.conversation import Entry
    from perdure.checkpoint_bridge.format.stable_json import JsonObject

__all__ = ["Media", "Part", "parts_of"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


@dataclass(frozen=True)
class Media:
    """Content that is not text: an address, or bytes in base64 with their type."""

    mime: str
    """Empty when it is an address whose type nobody said."""
    url: str = ""
    data: str = ""
    """Base64 with padding, no line breaks."""
    filename: str = ""

    @property
    def is_image(self) -> bool:
        """Whether its type says that it is a picture."""
        return self.mime.startswith("image/")

    @property
    def data_url(self) -> str:
        """The bytes as one ``data:`` URL."""
        return f"data:{self.mime};base64,{self.data}"

    def name_or_default(self) -> str:
        """A file name with the right ending, for services that want one."""
        return self.filename or "file" + (mimetypes.guess_extension(self.mime) or ".bin")

    def text(self) -> str | None:
        """The text that the bytes are, or ``None`` when they are not UTF-8."""
        try:
            return base64.b64decode(self.data).decode("utf-8-sig")
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class Part:
    """One part of a message: text, or media."""

    where: str
    kind: str = "text"
    """``text``, ``image`` or ``file``, as the message calls it."""
    text: str = ""
    media: Media | None = None


def parts_of(entry: Entry, label: str) -> list[Part]:
    """The parts of a message in order; a plain string is one text part, empty texts are left out.

    Raises:
        ProviderError: not retryable, naming the message and the part that cannot be sent.
    """
    content = entry.message.get("content")
    if content is None or isinstance(content, str):
        return [Part(entry.where, text=content)] if content else []
    if not isinstance(content, list):
        raise cannot_send(label, f"{entry.where}: content is neither text nor a list of parts")
    parts: list[Part] = []
    for number, part in enumerate(content, start=1):
        where = f"{entry.where}, part {number}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            if part.get("text"):
                parts.append(Part(where, text=str(part["text"])))
        elif kind == "image":
            media = _media(part, part.get("image"), where, label)
            if not media.url and not media.is_image:
                _refuse(label, where, f"is an image of the type {media.mime or 'unknown'!r}")
            parts.append(Part(where, kind, media=media))
        elif kind == "file":
            parts.append(Part(where, kind, media=_media(part, part.get("data"), where, label)))
        else:
            _refuse(label, where, f"has the unknown type {kind!r}; known: text, image, file")
    return parts


def _media(part: JsonObject, value: Any, where: str, label: str) -> Media:
    mime = str(part.get("mimeType") or "").strip().lower()
    filename = str(part.get("filename") or "")
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
    elif isinstance(value, dict) and set(value) == {"$bytes"}:
        raw = _base64(str(value["$bytes"]), where, label)
    elif isinstance(value, str) and value[:8].lower().startswith(("http://", "https://")):
        return Media(mime, url=value, filename=filename)
    elif isinstance(value, str) and value[:5].lower() == "data:":
        head, comma, payload = value[5:].partition(",")
        if not comma:
            _refuse(label, where, "holds a data: URL without a comma")
        raw = unquote_to_bytes(payload)
        flags = head.lower().split(";")
        if flags[-1].strip() == "base64":
            raw = _base64(raw.decode("ascii", "replace"), where, label)
        mime = mime or flags[0].strip()
    else:
        _refuse(label, where, "holds neither an http(s) or data: URL nor bytes")
    return Media(
        mime or _sniffed(raw),
        data=base64.b64encode(raw).decode("ascii"),
        filename=filename,
    )


def _sniffed(raw: bytes) -> str:
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _MAGIC if raw.startswith(magic)), "")


def _base64(text: str, where: str, label: str) -> bytes:
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        _refuse(label, where, "holds broken base64")


def _refuse(label: str, where: str, why: str) -> NoReturn:
    raise cannot_send(label, f"{where} {why}")
