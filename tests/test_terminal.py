"""Tables and JSON for the shell."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.terminal import number, paragraph, table, to_json


def test_numbers_stand_right_words_left():
    lines = table(("name", "time", "what"), [("a", "1.5", "x"), ("longer", "12.25", None)]).splitlines()
    assert lines == ["name     time  what", "a         1.5  x", "longer  12.25  -"]


def test_only_the_last_column_wraps():
    lines = table(("name", "what"), [("a", "one two three four five six seven")], width=26).splitlines()
    assert lines == ["name  what", "a     one two three four", "      five six seven"]


def test_a_table_without_rows_is_its_header():
    assert table(("name", "what"), []) == "name  what"


def test_rows_of_unequal_length_are_a_mistake():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        table(("name", "what"), [("a",)])


@given(st.lists(st.tuples(st.text("ab c", max_size=8), st.text("xyz ", max_size=90)), min_size=1))
def test_no_word_is_lost(rows):
    shown = table(("h", "i"), rows).split()
    assert sorted(shown) == sorted(" ".join(("h i", *(f"{one} {two}" for one, two in rows))).split())


def test_number_or_nothing():
    assert number(0.123456, ".2f") == "0.12"
    assert number(None) is None
    assert number(math.nan) is None


def test_paragraph_keeps_hyphenated_words_whole():
    assert paragraph("aaa bbb-ccc", 6) == "aaa\nbbb-ccc"


def test_json_has_null_for_what_json_does_not_know_and_plain_values_for_numpy():
    content = {"a": math.nan, "b": [np.inf, np.float64(1.5), np.int64(2), np.bool_(True)], "c": np.array([1.0, np.nan])}
    assert json.loads(to_json(content)) == {"a": None, "b": [None, 1.5, 2, True], "c": [1.0, None]}
