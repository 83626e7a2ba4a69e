"""The filter language: what is written is read again, and what cannot be read is explained."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detection.filtering.language import FilterError, Term, Value, exact, parse, term, without, write

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
values = texts.map(exact)
words = texts.filter(bool).map(lambda text: Term("", (Value(text, is_quoted=True),)))
fields = st.builds(
    Term,
    st.sampled_from(["agent", "tool", "cost", "first_2"]),
    st.lists(values, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["", ">", ">=", "<", "<="]),
    st.booleans(),
)


@given(st.lists(words | fields, max_size=8))
@example([Term("tool", (exact(">x"),), ">")])
@example([Term("tool", (exact("="),), ">")])
def test_terms_survive_being_written(terms):
    assert parse(write(terms)) == tuple(terms)


@given(st.text(max_size=60) | st.text('-:,"\\ a>=<.*', max_size=60))
def test_any_text_is_read_or_explained(text):
    try:
        terms = parse(text)
    except FilterError as error:
        assert error.detail.endswith((".", "`"))
    else:
        assert parse(write(terms)) == terms


def test_a_filter_is_read_into_terms():
    assert parse('agent:browser Kind:cycle,repeat -tool:"a b" cost:>=0.1 "not found" -x') == (
        term("agent", "browser"),
        term("kind", "cycle", "repeat"),
        Term("tool", (Value("a b", is_quoted=True),), "", is_negated=True),
        Term("cost", (Value("0.1"),), ">="),
        Term("", (Value("not found", is_quoted=True),)),
        Term("", (Value("x"),), "", is_negated=True),
    )
    assert parse('12:30 a,b say:"\\"hi\\\\"')[-1].values[0].text == '"hi\\'
    assert write(without(parse("is:open agent:a"), {"is"})) == "agent:a"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("agent:", "`agent:` needs a value."),
        ("cost:> 3", "`cost:>` needs a value."),
        ("kind:a, b", "A value of `kind` must follow the comma without a space."),
        ("kind:,a", "A value is missing before the comma."),
        ('x tool:"a', "The quote at character 8 is not closed."),
        ('tool:"a"b', "A space must follow a quoted value."),
        ("- a", "A term must follow `-` without a space."),
        ("a" * 1_001, "A filter can have at most 1,000 characters."),
        ("a " * 41, "A filter can have at most 40 words and values."),
        ("kind:" + "a," * 40 + "a", "A filter can have at most 40 words and values."),
        ("a\x00", "A filter cannot contain a NUL character."),
    ],
)
def test_a_mistake_is_named(text, detail):
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.detail == detail
