"""Where the codes and scales of a row go: tensors of their own, or an entry of a cache."""
# No postponed annotations: TileLang reads them as values.

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.parts import numbers as nf


def putter(unit: int) -> Any:
    """The macro ``put(buffer, head, tail, at, code, index, size)``: words to byte ``at`` of a cache whose addresses are
    multiples of ``unit`` bytes."""

    @T.macro
    def put(buffer, head, tail, at, code, index, size):
        """``size`` words of ``code`` from ``index`` to byte ``at``, in pieces that the address allows."""
        if size == 4 and unit >= 16:
            T.stg128(buffer[head, tail, at], code[index : index + 4])
        elif size >= 2 and unit >= 8:
            for i in list(range(0, size, 2)):
                T.stg64(buffer[head, tail, at + 4 * i], code[index + i : index + i + 2])
        elif unit >= 4:
            for i in list(range(size)):
                T.stg32(buffer[head, tail, at + 4 * i], code[index + i])
        elif unit == 2:
            for i in list(range(2 * size)):
                piece = code[index + i // 2] >> T.uint32(16 * (i % 2))
                T.evaluate(nf.store16(T.address_of(buffer[head, tail, at + 2 * i]), piece))
        else:
            for i in list(range(4 * size)):
                buffer[head, tail, at + i] = T.cast(code[index + i // 4] >> T.uint32(8 * (i % 4)), "uint8")

    return put


def placer(*, target: str, unit: int, fmt: str, sf: str, row_bytes: int, scale_bytes: int, together: bool) -> Any:
    """The macro ``place(buffer, scales, head, tail, page, at, first, leads, code, byte)`` for a ``target``.

    ``head``, ``tail``: token and head of a plain tensor, unit and entry of a cache. ``at``: first byte of the codes in
    the row; ``first``: the group's number in the row; ``leads``: whether this thread writes the scale. ``together``:
    ``byte`` is the word of four groups.
    """
    code_words = 2 if fmt == "e4m3" else 1
    put = putter(unit)

    @T.macro
    def put_scale(buffer, head, tail, behind, first, leads, byte):
        if leads:
            if together:
                T.stg32(buffer[head, tail, behind + first], byte)
            elif sf == "f32":
                T.stg32(buffer[head, tail, behind + first * 4], byte)
            else:
                buffer[head, tail, behind + first] = T.cast(byte, "uint8")

    @T.macro
    def place_plain(buffer, scales, head, tail, page, at, first, leads, code, byte):
        if target == "codes":
            put(buffer, head, tail, at, code, 0, code_words)
        put_scale(scales, head, tail, 0, first, leads, byte)

    @T.macro
    def place_entry(buffer, scales, head, tail, page, at, first, leads, code, byte):
        put(buffer, head, tail, at, code, 0, code_words)
        put_scale(buffer, head, tail, row_bytes, first, leads, byte)

    @T.macro
    def place_split(buffer, scales, head, tail, page, at, first, leads, code, byte):
        put(buffer, head, 0, tail * row_bytes + at, code, 0, code_words)
        put_scale(buffer, head, 0, page * row_bytes + tail * scale_bytes, first, leads, byte)

    return {"cache": place_entry, "split": place_split}.get(target, place_plain)
