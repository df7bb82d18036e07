"""The rule that opens the window."""

from __future__ import annotations

import pytest

from deepinfer_bench.steady import Settling, SteadyRule, settle

RULE = SteadyRule(block=4, within=0.05, most=16)


def test_rule_holds_when_two_blocks_have_nearly_one_median():
    assert RULE.holds([1.0, 1.0, 1.0, 9.0, 1.04, 1.05, 1.03, 0.1])


def test_rule_does_not_hold_before_two_whole_blocks():
    assert not RULE.holds([1.0] * 7)


@pytest.mark.parametrize("later", [0.94, 1.06])
def test_rule_does_not_hold_while_blocks_differ_either_way(later):
    assert not RULE.holds([1.0] * 4 + [later] * 4)


def test_rule_looks_at_the_last_two_blocks_and_leaves_a_part_of_one_out():
    assert RULE.holds([9.0] * 4 + [1.0] * 8 + [50.0] * 3)


def test_settle_stops_at_the_first_block_that_agrees():
    values = iter([3.0] * 4 + [2.0] * 4 + [1.99] * 4 + [1.0] * 4)
    assert settle(RULE, lambda: next(values)) == Settling(12, True)


def test_settle_gives_up_and_says_so():
    values = iter(2.0**-i for i in range(100))
    assert settle(RULE, lambda: next(values)) == Settling(16, False)


def test_settle_without_any_warm_up_takes_nothing():
    assert settle(SteadyRule(block=1, most=0), lambda: 1 / 0) == Settling(0, False)


def test_rule_is_told_in_words():
    assert RULE.text == "medians of two successive blocks of 4 differ by at most 5%; at the latest after 16"
