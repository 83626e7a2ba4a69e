"""Long strings are cut out of JSON as it arrives."""

import asyncio
import hashlib

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.api.long_texts import CUT, MAX_STRING_BYTES, LongTextCutter, cut_long_texts
from loopguard_site.front.bodies import BodyReader

UNIT = st.sampled_from(["a", "\n", '"', "\\", "ä", "€", "😀", "\x01", "word "])
PIECE = st.tuples(UNIT, st.sampled_from([1, 1, 5, 9_000, 30_000]))
TEXT = st.lists(PIECE, max_size=6).map(lambda pieces: "".join(unit * times for unit, times in pieces))
DOCUMENT = st.recursive(
    TEXT | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def in_pieces(data, sizes):
    cutter, out, at = LongTextCutter(), b"", 0
    for size in sizes:
        out += cutter.feed(data[at : at + size])
        at += size
    out += cutter.feed(data[at:]) + cutter.finish()
    assert cutter.received == len(data)
    assert cutter.passed == len(out)
    return out


def check(before, after):
    """Assert that two documents are equal but for the ends of long strings."""
    if isinstance(before, dict):
        for pair, other in zip(before.items(), after.items(), strict=True):
            check([*pair], [*other])
    elif isinstance(before, list):
        for one, other in zip(before, after, strict=True):
            check(one, other)
    elif before != after:
        cut = CUT.search(after)
        raw = orjson.dumps(before)[1:-1]
        assert len(raw) > MAX_STRING_BYTES
        assert int(cut[1]) == len(before)
        assert cut[2] == hashlib.blake2b(raw, digest_size=16).hexdigest()
        assert before.startswith(after[: cut.start()])


@settings(deadline=None, max_examples=50, print_blob=False)
@given(DOCUMENT, st.lists(st.integers(1, 70_000), max_size=6))
def test_what_is_cut_is_json_with_the_length_and_digest_of_what_was(document, sizes):
    data = orjson.dumps(document)
    cut = in_pieces(data, sizes)
    assert cut == cut_long_texts(data)
    check(document, orjson.loads(cut))
    assert cut_long_texts(cut) == cut


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=6))
def test_what_is_no_json_passes_unchanged(data, sizes):
    assert in_pieces(data, sizes) == data


def test_a_character_and_an_escape_are_not_cut_in_two():
    for offset in range(16):
        for unit in ("😀", "\\u00e9", "\\n", "\\\\"):
            text = "a" * offset + unit * (MAX_STRING_BYTES // 2 + 99)
            assert CUT.search(orjson.loads(cut_long_texts(f'"{text}"'.encode())))


def test_the_front_keeps_only_what_is_left_of_a_body():
    class Arriving:
        async def __aiter__(self):
            yield b'{"a": "'
            for _ in range(40):
                yield b"x" * 500_000
            yield b'"}'

    async def read():
        cutter = LongTextCutter()
        body = await BodyReader().read(Arriving(), str(20_000_009), cutter)
        return cutter, body

    cutter, body = asyncio.run(read())
    assert (cutter.received, len(body) < 100_000) == (20_000_009, True)
    assert CUT.search(orjson.loads(body)["a"])[1] == "20000000"
