"""Finds numbers that contain check digits: of payment cards and of bank accounts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detection.engine import tables

CARD_HINT = r"[2-6]\d{3}[ -]?\d{4}"
_CARD = re.compile(
    r"(?<![\w+.-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6\d{3})([ -]?)\d{4}\1\d{4}\1\d{4}|3[47]\d\d([ -]?)\d{6}\2\d{5}"
    r"|3[068]\d\d([ -]?)\d{6}\3\d{4})(?![\w-])"
)
_LENGTHS = {country: row["length"] for row in tables.table("ibans") for country in row["countries"]}
_COUNTRIES = "|".join(_LENGTHS)
IBAN_HINT = rf"\b(?-i:{_COUNTRIES})\d{{2}} ?[0-9A-Z]{{4}} ?\d"
_IBAN = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_COUNTRIES})\d\d(?: ?[0-9A-Z]{{4}}){{2,7}}(?: ?[0-9A-Z]{{1,3}})?(?![A-Za-z0-9])"
)


def find_cards(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the numbers of payment cards."""
    for found in _CARD.finditer(text):
        if _is_card(found[0]):
            yield *found.span(), "card"


def _is_card(text: str) -> bool:
    """Return whether a number is that of a payment card: not one digit alone, and the check digit is right."""
    digits = [int(char) for char in text if char.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def find_ibans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the numbers of bank accounts."""
    for found in _IBAN.finditer(text):
        length = _LENGTHS[found[0][:2]]
        number = found[0].replace(" ", "")
        # Words in capital letters may follow a number in groups.
        end = found.end() if len(number) == length else _end_of(found, length)
        if end and _has_right_check_digits(number[:length]):
            yield found.start(), end, "iban"


def _end_of(found: re.Match[str], length: int) -> int:
    """Return where the first `length` characters of a number in groups end; 0 if that is inside a group."""
    count = 0
    for at, char in enumerate(found[0]):
        count += char != " "
        if count == length:
            is_whole = found[0][at + 1 : at + 2] == " "
            return found.start() + at + 1 if is_whole else 0
    return 0


def _has_right_check_digits(number: str) -> bool:
    return int("".join(str(int(char, 36)) for char in number[4:] + number[:4])) % 97 == 1
