"""The prompt: from the command line or from standard input, refused while nothing is begun."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence

from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.protocol.request import Request
from outrider.runtime.text.tokenizer import Tokenizer


def read_prompt(given: str | None) -> str:
    """The prompt as text. Of standard input, one line break at the very end is left out.

    Raises:
        SettingError: there is none, it is empty, or it is not UTF-8.
    """
    if given is not None and given != "-":
        text = given
    elif given is None and sys.stdin.isatty():
        raise SettingError("no prompt: give it in quotes, or pipe it to standard input")
    else:
        text = _decode(sys.stdin.buffer.read())
    if not text:
        raise SettingError("the prompt is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Bytes of an argument that were not UTF-8 arrive as lone surrogates.
        raise SettingError(
            f"the prompt is not valid UTF-8 at byte {len(text[: error.start].encode())}"
        ) from None
    return text


def _decode(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SettingError(
            f"standard input is not valid UTF-8 at byte {error.start} "
            f"(0x{data[error.start]:02x}): {error.reason}"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def fresh_seed() -> int:
    """64 bits from the system, for an answer that nobody seeded."""
    return secrets.randbits(64)


def parse_bias(entries: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """``ID=BIAS`` or, as llama.cpp writes it, ``ID+BIAS`` and ``ID-BIAS``."""
    found = []
    for entry in entries:
        token, sign, value = _split_bias(entry)
        try:
            found.append((int(token), float(sign + value)))
        except ValueError:
            raise SettingError(
                f"--logit-bias {entry!r}: expected ID=BIAS, for example 15043=-2.5"
            ) from None
    return tuple(found)


def _split_bias(entry: str) -> tuple[str, str, str]:
    token, equals, value = entry.partition("=")
    if equals:
        return token, "", value
    for sign in "+-":
        token, found, value = entry.partition(sign)
        if found and token:
            return token, sign, value
    return entry, "", ""


def build_request(
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    max_tokens: int,
    chat: bool = False,
    system: str | None = None,
    stops: Sequence[str] = (),
    ignore_eos: bool = False,
    objective: str | None = None,
) -> Request:
    """The answer to ask for, with the prompt as ids.

    Raises:
        SettingError: no ids come out of it, or there is no template to chat with.
    """
    messages = []
    if chat:
        if system is not None:
            messages.append({"role": "system", "content": system})
        messages.append({"role": "user", "content": prompt})
        ids = tokenizer.encode_chat(messages)
    else:
        ids = tokenizer.encode_prompt(prompt)
    if not ids:
        raise SettingError("the prompt is empty: it has no tokens")
    return Request(
        max_tokens=max_tokens,
        sampling=sampling,
        ids=tuple(ids),
        messages=tuple(messages) or None,
        templated=chat,
        stops=tuple(stops),
        ignore_eos=ignore_eos,
        objective=objective,
    )
