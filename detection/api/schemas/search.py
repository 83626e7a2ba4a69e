"""Schemas of the search in contents."""

from __future__ import annotations

from typing import Annotated

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import ShortText, with_fields_of
from detection.filtering.signatures import MAX_CHARACTERS
from detection.selectors.search import MAX_SECONDS, SECONDS, SearchPage

SearchText = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]


class SearchQuerySchema(Schema):
    """What to search for."""

    q: SearchText = Field(
        description="Words, and phrases in double quotes. All must occur in one call, result or message, or in the "
        "names of its session; anywhere, also within words, ignoring upper and lower case."
    )
    cursor: ShortText = Field("", description="`next_cursor` of the previous page. Empty for the first page.")
    limit: int = Field(20, ge=1, le=100, description="Hits per page.")
    by_session: bool = Field(False, description="Only the newest hit of each session.")
    seconds: float = Field(
        SECONDS,
        ge=0.05,
        le=MAX_SECONDS,
        description="How long to search. Then the page has the hits found so far, and its cursor continues.",
    )


@with_fields_of(SearchPage)
class SearchPageSchema(Schema):
    """Some hits, newest sessions first and the newest call of each first, and how far the search got."""
