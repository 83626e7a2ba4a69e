"""The loop strip shows repetition, and says the same in words."""

from detection.selectors.strips import Cell, describe, hues, large, look, small


def cells(word: str) -> list[Cell]:
    """A letter is a call; the marks behind it are its flags."""
    found: list[Cell] = []
    for letter in word:
        if letter.isalpha() and letter.isupper():
            found.append(Cell(len(found) + 1, f"{ord(letter):06x}", ""))
        else:
            last = found.pop()
            found.append(Cell(last.seq, last.key, last.flags + letter))
    return found


def test_a_call_seen_once_is_grey_and_a_repeated_one_has_a_hue():
    strip = cells("ABA")
    colours = hues(cell.key for cell in strip)
    assert look(strip[1], colours) == "u"
    assert look(strip[0], colours).startswith("f h")


def test_a_repeated_call_is_pale_while_its_results_are_new():
    strip = cells("A^A")
    colours = hues(cell.key for cell in strip)
    assert look(strip[0], colours).startswith("p h")
    assert look(strip[1], colours).startswith("f h")


def test_a_call_that_did_not_run_is_hollow_and_waits_for_no_result():
    strip = cells("AA?sBb")
    colours = hues(cell.key for cell in strip)
    assert look(strip[1], colours).startswith("o h")
    assert look(strip[2], colours) == "n"


def test_different_repeated_calls_have_different_hues_up_to_twelve():
    keys = [f"{number:06x}" for number in range(0, 12 * 12, 12)] * 2
    assert len(set(hues(keys).values())) == 12


def test_a_loop_keeps_its_hue_while_the_strip_moves_on():
    assert hues(["a1", "a1", "b7", "b7"])["b7"] == hues(["b7", "b7", "c0", "c0"])["b7"]


def test_a_blocked_call_without_a_key_is_never_a_repetition():
    assert hues(["", "", ""]) == {}


def test_words_say_what_the_strip_shows():
    assert describe(cells("ABCDD!DwDs")) == (
        "7 calls, 1 call repeated, at most 4 times, the last 4 equal, 1 error, 1 warning, 1 stopped call"
    )
    assert describe([]) == "No calls yet"


def test_a_dot_stands_above_a_warning_and_what_the_guard_would_have_done():
    assert dict(small(cells("AAwABA^")).paths)["dot"].count("M") == 1
    reported = [Cell(number, "aa", flag) for number, flag in enumerate(("", "B", "!S"))]
    assert dict(small(reported).paths)["dot"].count("M") == 2
    assert "dot" not in dict(small(cells("A^A^Ab")).paths)


def test_a_bar_follows_a_stop_and_no_block():
    assert dict(small(cells("AsAs")).paths)["end"].count("M") == 1
    assert "end" not in dict(small(cells("Ab")).paths)


def test_sixty_calls_weigh_about_a_kilobyte_and_a_half_a_look():
    strip = small(cells("AB" * 30))
    assert strip.width == 302
    assert len(strip.paths) == 2


def test_a_loop_has_a_bracket_if_any_of_its_calls_is_shown():
    bracket = dict(large(cells("ABABABAB"), cell_width=12, loop=(3, 5)).paths)["bracket"]
    assert bracket == "M28 54v3h40v-3"
    assert "bracket" not in dict(large(cells("AB"), cell_width=12, loop=(100, 110)).paths)
