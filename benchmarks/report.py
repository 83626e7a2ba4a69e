"""One line per figure, with its required and desired value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure.

    Attributes
    ----------
    must, aim
        Required and desired value; less is better unless `more_is_better`.
    text
        How the value is printed, `value` and `unit` by default.
    """

    name: str
    value: float
    unit: str
    must: float | None = None
    aim: float | None = None
    more_is_better: bool = False

    @property
    def standing(self) -> str:
        """Return whether the value is within the required and the desired value, in words."""
        if self.must is None:
            return ""
        sign = -1 if self.more_is_better else 1
        if self.aim is not None and sign * self.value <= sign * self.aim:
            return "aim"
        return "must" if sign * self.value <= sign * self.must else "MISSED"

    def line(self) -> str:
        """Return the printed line."""
        return (
            f"{self.name:<58} {_number(self.value):>10} {self.unit:<9} "
            f"{_number(self.must):>9} {_number(self.aim):>9}  {self.standing}"
        )

    def row(self) -> str:
        """Return the row of a table in Markdown, as in docs/benchmarks.md."""
        must, aim = (
            f"{_number(limit)} {self.unit}" if limit is not None else "" for limit in (self.must, self.aim)
        )
        return f"| {self.name} | {_number(self.value)} {self.unit} | {must} | {aim} | {_STANDINGS[self.standing]} |"


_STANDINGS = {"": "", "aim": "target", "must": "required", "MISSED": "**missed**"}
MARKDOWN_HEAD = "| figure | measured | required | target | |\n| --- | ---: | ---: | ---: | --- |"
HEAD = f"{'':<58} {'measured':>10} {'':<9} {'must':>9} {'aim':>9}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percentile(values: list[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
