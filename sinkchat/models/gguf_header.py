"""What the beginning of a GGUF file says: its settings and the shapes of its tensors.

The readers of the format parse the whole vocabulary into arrays, three seconds for 49,000 tokens; here lists are
stepped over, and no tensor is touched. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from sinkchat.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 26
"""bytes of one text: more is no text but a damaged file"""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The settings that are single values or texts; of every tensor, by its name, the shape and the kind's number."""

    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, int]

    @property
    def family(self) -> str:
        return str(self.settings.get("general.architecture", "unknown"))

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def has_template(self) -> bool:
        return bool(self.settings.get("tokenizer.chat_template"))

    @property
    def quantization(self) -> str:
        """The kind of most of its blocks, such as "Q4_1"; "none" where they are plain numbers."""
        from gguf import LlamaFileType

        try:
            kind = LlamaFileType(self.settings.get("general.file_type")).name.removeprefix("MOSTLY_")
        except ValueError:
            return "unknown"
        return "none" if kind in ("ALL_F32", "F16", "BF16") else kind


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises ModelError for a file that is none, or cut short in its header."""
    try:
        with open_unnoticed(path) as file:
            if file.read(4) != b"GGUF" or _number(file, "I") not in (2, 3):
                raise ModelError(f"{path.name} is no GGUF file of version 2 or 3", hint="fetch it again")
            tensors, settings = _number(file, "Q"), _number(file, "Q")
            pairs = (_pair(file) for _ in range(settings))
            kept = {name: value for name, value in pairs if value is not None}
            found = [_tensor(file) for _ in range(tensors)]
            shapes = {name: shape for name, shape, _ in found}
            return GgufHeader(kept, shapes, {name: kind for name, _, kind in found})
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise ModelError(f"the header of {path.name} is damaged or cut short", hint="fetch it again") from error


def kind_of_blocks(path: Path) -> str:
    """As `GgufHeader.quantization`; "unknown" for a file that is none."""
    try:
        return read_gguf_header(path).quantization
    except ModelError:
        return "unknown"


def refuse_unknown_blocks(path: Path) -> None:
    """Raises ModelError where a tensor of the file lies in blocks that the package gguf cannot open."""
    try:
        kinds = set(read_gguf_header(path).kinds.values())
    except ModelError:  # the reader says it better
        return
    unknown = [name for name in map(_unknown_name, sorted(kinds)) if name]
    if unknown:
        raise ModelError(
            f"{path.name} holds weights in blocks of kind {unknown[0]}, which gguf {version('gguf')} cannot open",
            hint="a file in another kind, such as Q8_0 or Q4_K_M; or pip install --upgrade gguf",
        )


def _unknown_name(number: int) -> str:
    """What a kind of blocks that cannot be opened is called; empty for one that can."""
    import gguf
    import numpy as np

    try:
        kind = gguf.GGMLQuantizationType(number)
        gguf.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except ValueError:
        return str(number)
    except NotImplementedError:
        return str(kind.name)
    return ""


def open_unnoticed(path: Path) -> BinaryIO:
    """The file open for reading, without becoming one that was read lately: that is how its last use is known.

    Only on Linux, and only for the owner of the file.
    """
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOATIME", 0)))
    except PermissionError:
        return path.open("rb")


def _number(file: BinaryIO, kind: str) -> Any:
    layout = struct.Struct(f"<{kind}")
    return layout.unpack(file.read(layout.size))[0]


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    content = file.read(length) if length <= _LONGEST else b""
    if len(content) < length:
        raise ValueError("a text is cut short")
    return content.decode("utf-8", errors="replace")


def _pair(file: BinaryIO) -> tuple[str, Any]:
    """A setting; its value is None where it is a list."""
    return _text(file), _value(file, _number(file, "I"))


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        return _number(file, _SCALARS[kind])
    kind, count = _number(file, "I"), _number(file, "Q")
    if kind in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[kind]), 1)
    else:
        for _ in range(count):
            _value(file, kind)
    return None


def _tensor(file: BinaryIO) -> tuple[str, tuple[int, ...], int]:
    name = _text(file)
    shape = tuple(_number(file, "Q") for _ in range(_number(file, "I")))
    kind = int(_number(file, "I"))
    _number(file, "Q")  # its place
    return name, shape, kind
