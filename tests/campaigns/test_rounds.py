"""Tests of the rounds of a campaign: new seeds, and no success of what the time did not suffice for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import islice

import pytest

from tests.campaigns import __main__ as campaign_program
from tests.campaigns.rounds import Rounds, add_seed, choose_seed


def test_each_campaign_has_a_new_seed_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The seed is printed as the option that repeats the campaign."""
    parser = argparse.ArgumentParser()
    add_seed(parser)

    first, second = choose_seed(parser.parse_args([]).seed), choose_seed(parser.parse_args([]).seed)
    repeated = choose_seed(parser.parse_args(["--seed", str(first)]).seed)

    assert first == repeated != second
    assert capsys.readouterr().out.splitlines() == [f"--seed {seed}" for seed in (first, second, first)]


def test_the_seed_chooses_the_first_kind() -> None:
    """Short campaigns with other seeds begin with other kinds, and each round has all of them."""
    rounds = Rounds(["a", "b"], 3, minutes=1)

    assert list(islice(rounds, 5)) == [(3, "b"), (3, "a"), (4, "a"), (4, "b"), (5, "b")]
    assert rounds.describe_seeds() == "seeds 3 to 5"
    assert (rounds.get_exit_code(0), rounds.get_exit_code(1)) == (0, 1)


@pytest.mark.parametrize(("complete", "code"), [(False, 0), (True, 1)])
def test_kinds_that_the_time_did_not_suffice_for_are_named(
    complete: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One workload runs however short the time is; in a complete campaign the others are a failure."""
    rounds = Rounds(["a", "b", "c"], 7, minutes=0, complete=complete)

    assert list(rounds) == [(7, "b")]
    assert rounds.get_exit_code(0) == code
    assert capsys.readouterr().out == "  the time did not suffice for a, c (use more --minutes)\n"


def test_each_campaign_runs_and_a_killed_one_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that a signal has ended has a negative exit code, which is not a success."""
    tried: list[tuple[str, int, float]] = []

    def build_campaign(name: str, code: int) -> Callable[[argparse.Namespace], int]:
        def run_campaign(options: argparse.Namespace) -> int:
            tried.append((name, options.seed, options.minutes))
            return code

        return run_campaign

    campaigns = {name: build_campaign(name, code) for name, code in (("a", 0), ("b", -9), ("c", 0))}
    monkeypatch.setattr(campaign_program, "_CAMPAIGNS", campaigns)

    code = campaign_program.main(["--minutes", "6"])

    seed = int(capsys.readouterr().out.removeprefix("--seed "))
    assert tried == [(name, seed, 2) for name in campaigns]
    assert (code, campaign_program.main(["--only", "a", "c"])) == (1, 0)
