"""``deepinfer audit``: right samplers pass, wrong ones do not, and what says nothing is left out and named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from engine_toys import save_tokenizer
from verified_toys import SPOILT, VerifiedParts, verified_parts

from deepinfer_core.audit import acceptance, check_uniformity, collect, summarise
from deepinfer_core.audit.draws import Draws
from deepinfer_core.cli import main
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline.draft_report import DraftCounts
from deepinfer_core.replay import RecordedAnswer, RecordedRequest
from deepinfer_core.types import ModelCard

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives status, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main([*map(str, arguments)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


# --- files made without a model -----------------------------------------------------------------------------------


def drawn(count: int, *, temperature: float, seed: int = 5) -> list[dict[str, float]]:
    """Tokens drawn at ``temperature`` from distributions over 50 ids, and reported as drawn at 1."""
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        logits = generator.normal(size=50) * 1.5
        p = np.exp(logits) / np.exp(logits).sum()
        q = p ** (1 / temperature)
        token = int(generator.choice(50, p=q / q.sum()))
        mass = float(p[p < p[token]].sum() + p[token])
        items.append({"token_id": token, "logprob": float(np.log(p[token])), "sum_smaller": mass})
    return items


def line(items: list[dict[str, float]], *, seed: int = 1, **params: Any) -> dict[str, Any]:
    return {
        "id": "0",
        "token_ids": [item["token_id"] for item in items],
        "finish_reason": "length",
        "finish_detail": "max_tokens",
        "logprobs": items,
        "prompt_token_ids": [1, 2, 3],
        "params": {"seed": seed, "max_tokens": max(1, len(items)), **params},
        "run": {"format": 1, "settings": {}, "versions": {}},
    }


def saved(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


@pytest.mark.parametrize(("temperature", "status"), [(1.0, 0), (0.9, 5), (1.1, 5)])
def test_audit_of_drawn_tokens_tells_the_right_temperature(
    temperature: float, status: int, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("scipy", reason="the test is scipy's")
    file = saved(tmp_path / "results.jsonl", line(drawn(8000, temperature=temperature)))
    found, out, _ = command("--json", "audit", file)
    record = json.loads(out)
    assert (found, record["fits"], record["draws"]) == (status, status == 0, 8000)
    assert (record["p_value"] >= 0.001) == (status == 0)


def test_audit_text_is_whole(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the test is scipy's")
    items = [{"token_id": 1, "logprob": -0.5, "sum_smaller": 0.25 * i + 0.6} for i in range(2)]
    file = saved(
        tmp_path / "results.jsonl",
        {**line(items), "verified_drafts": [1, 1], "accepted_drafts": [1, 0]},
        line(items, seed=2, temperature=0),
    )
    status, out, err = command("audit", file)
    assert (status, err) == (0, "")
    assert out == (
        "draws: 2 (left out: 2 greedy)\n"
        "uniformity: distance 0.3136 at 0.69, p value 0.968, level 0.001: the draws fit"
        " (so many draws show distances from 1.000)\n"
        "log-probability: mean -0.500 of 4 tokens; by position 1: -0.500, 2: -0.500\n"
        "drafts: 2 verified, 1 accepted (by place 1/1, 0/1), 2.00 tokens a step\n"
    )


def test_audit_of_an_emulation_is_marked(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the test is scipy's")
    made = line([{"token_id": 1, "logprob": -0.5, "sum_smaller": 0.6}])
    made["run"]["settings"]["emulate"] = True
    file = saved(tmp_path / "results.jsonl", made)
    assert json.loads(command("--json", "audit", file)[1])["emulated"] is True
    assert command("audit", file)[1].splitlines()[0] == (
        "backend: EMULATED on the processor: this says nothing of the speed of a device"
    )


def request(items: int, params: SamplingParams, *, prompt: int = 3, logprob: float = -0.1) -> RecordedRequest:
    answer = RecordedAnswer((1,) * items, "length", "", (logprob,) * items, (0.9,) * items)
    return RecordedRequest(1, "0", (1,) * prompt, params, (answer,) * params.n)


def test_collect_leaves_out_what_says_nothing_or_would_count_twice() -> None:
    params = SamplingParams(seed=7)
    unrecorded = attrs.evolve(request(5, params), answers=(RecordedAnswer((1,) * 5, "length", ""),))
    draws = collect(
        [
            request(10, params),
            request(10, params, prompt=8),  # positions 8 to 17, of which 3 to 12 are taken
            request(2, params.updated({"seed": 1, "n": 3})),
            request(2, params.updated({"temperature": 0})),
            request(3, params.updated({"top_k": 1})),
            request(4, params.updated({"logprobs_mode": "raw"})),
            request(6, params.updated({"sampler": "other"})),
            request(3, params.updated({"seed": 2, "forced_token_ids": [-1, 1]})),
            request(8, params.updated({"seed": 3}), logprob=0.0),
            unrecorded,
        ]
    )
    assert len(draws.sum_smaller) == 10 + 5 + 6 + 2
    assert draws.left_out == {
        "repeated seed and position": 5,
        "greedy": 5,
        "raw logprobs": 4,
        "sampler of the request": 6,
        "forced": 1,
        "certain": 8,
        "no sum_smaller": 5,
    }


def test_uniformity_spreads_a_draw_over_its_own_mass_only() -> None:
    """Two tokens, .3 and .7: without the noise only two numbers would occur."""
    pytest.importorskip("scipy", reason="the test is scipy's")
    likely = np.random.default_rng(3).random(4000) < 0.7
    smaller = tuple(np.where(likely, 1.0, 0.3).tolist())
    logprobs = tuple(np.where(likely, np.log(0.7), np.log(0.3)).tolist())
    for noise_seed in range(3):
        assert check_uniformity(Draws(smaller, logprobs, {}), level=1e-3, noise_seed=noise_seed).holds
    wrong = tuple(np.where(np.random.default_rng(3).random(4000) < 0.6, 1.0, 0.3).tolist())
    logprobs = tuple(np.where(np.array(wrong) == 1.0, np.log(0.7), np.log(0.3)).tolist())
    found = check_uniformity(Draws(wrong, logprobs, {}), level=1e-3)
    assert not found.holds
    assert found.statistic == pytest.approx(0.1, abs=0.03)
    assert found.statistic > found.smallest_distance


def test_summaries_count_positions_and_places() -> None:
    answers = [
        RecordedAnswer((1, 2, 3), "length", "", (-1.0, -2.0, -9999.0), None, (2, 2), (1, 0)),
        RecordedAnswer((1, 2), "length", "", (-3.0, -4.0), None, (1,), (0,)),
        RecordedAnswer((1,), "abort", ""),
    ]
    summary = summarise(answers)
    assert (summary.count, summary.mean) == ((2, 2, 0), (-2.0, -3.0, None))
    assert (summary.tokens, summary.between(0, 3)) == (4, -2.5)
    found = acceptance(answers)
    assert found is not None
    assert (found.verified, found.accepted) == ((3, 2), (1, 0))
    assert (found.tokens, found.steps, found.tokens_per_step) == (3, 2, 1.5)
    assert acceptance(answers[2:]) is None


def test_draft_counts_follow_the_steps() -> None:
    counts = DraftCounts()
    for verified, is_draft in [(2, True), (0, True), (0, False), (3, False), (1, True), (0, False)]:
        counts.add(verified, is_draft=is_draft)
    assert (counts.verified, counts.accepted) == ([3, 2, 1], [2, 1, 0])


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--level", "0"), "level is 0.0; allowed: a number above 0 and below 1"),
        (("--level", "nan"), "level is nan; allowed: a number above 0 and below 1"),
        (("--noise-seed", "-1"), "noise_seed is -1; allowed: an integer >= 0"),
    ],
)
def test_audit_refuses_a_wrong_option(option: tuple[str, str], text: str, command: Command) -> None:
    status, out, err = command("audit", *option, "none.jsonl")
    assert (status, out) == (2, "")
    assert text in err


def test_audit_of_nothing_that_was_drawn_says_why(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the test is scipy's")
    status, out, err = command("audit", saved(tmp_path / "a.jsonl", line(drawn(3, temperature=1), temperature=0)))
    assert (status, out) == (2, "")
    assert err == (
        "deepinfer: E_INPUT: the results have no draw that could be audited\n"
        "  reason: tokens that were left out: 3 greedy\n"
        "  remedy: generate with --sum-smaller, --logprobs and a temperature above 0\n"
    )


def test_audit_without_its_library_says_what_to_install(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    status, out, err = command("audit", saved(tmp_path / "a.jsonl", line(drawn(3, temperature=1))))
    assert (status, out) == (4, "")
    assert "E_LIBRARY: an audit needs the package scipy" in err
    assert "remedy: pip install 'deepinfer-core[audit]'" in err


# --- the shipped sampler over a toy model -------------------------------------------------------------------------


class Biased:
    """A sampler that draws at a lower temperature than it was asked to, and reports as if it had not."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(self, logits: Any, inputs: Any) -> Any:
        colder = attrs.evolve(inputs, temperature=inputs.temperature * np.float32(0.9))
        return self._sampler.sample(
            logits, attrs.evolve(inputs, forced=self._sampler.sample(logits, colder).sampled_ids)
        )


class Forgetful:
    """A sampler whose drafts come from other distributions than it remembers."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def draft(self, *args: Any) -> Any:
        drafts = self._sampler.draft(*args)
        weights = self._sampler._proposer.pool.probabilities
        weights.sqrt_()
        weights /= weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return drafts


@pytest.fixture
def generate(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Generates 48 answers of 100 tokens with a sampler made from the shipped one; gives the file."""
    pytest.importorskip("torch", reason="the sampler is plain torch")
    pytest.importorskip("deepinfer_samplers", reason="the sampler is a plugin")
    pytest.importorskip("scipy", reason="the test is scipy's")
    model = tmp_path / "model"
    model.mkdir()
    save_tokenizer(model)
    card = ModelCard(path=model, architecture="Toy", model_type="toy", config={})
    prompts = saved(tmp_path / "prompts.jsonl", *({"prompt": f"prompt {i}", "seed": 40 + i} for i in range(16)))

    def call(wrap: Callable[[Any], Any], *options: object) -> Path:
        @attrs.define(eq=False)
        class Parts(VerifiedParts):
            def make_sampler(self, *args: Any) -> Any:
                return wrap(VerifiedParts.make_sampler(self, *args))

        def assemble(config: Any, **_: Any) -> Any:
            made = verified_parts(config, SPOILT["in rotation"], card=card)
            return Parts(**{field.name: getattr(made, field.name) for field in attrs.fields(VerifiedParts)})

        monkeypatch.setattr("deepinfer_core.assembly.assemble.assemble", assemble)
        out = tmp_path / "results.jsonl"
        more = ("--sum-smaller", "--logprobs", "--ignore-eos", "--max-num-seqs", 32, "--block-size", 4)
        status, _, err = command(
            "generate", "--prompts-file", prompts, "--out", out, "-n", 3, "--max-tokens", 100, *more, *options
        )
        if status:
            raise AssertionError(err)
        return out

    return call


MODES: list[Any] = [
    (),
    ("--draft-tokens", 3, "--verify", "rejection"),
    ("--draft-tokens", 3, "--verify", "coupled"),
    pytest.param(
        ("--draft-tokens", 5, "--verify", "rejection", "--temperature", 0.8, "--top-p", 0.95), marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_audit_passes_the_shipped_sampler(options: tuple[object, ...], generate: Any, command: Command) -> None:
    status, out, err = command("--json", "audit", generate(lambda sampler: sampler, *options))
    record = json.loads(out)
    assert status == 0, out + err
    assert record["draws"] > 4700
    assert ("drafts" in record) == bool(options)
    if options:
        drafts = record["drafts"]
        assert 0 < sum(drafts["accepted"]) < sum(drafts["verified"])
        assert drafts["tokens"] == 48 * 99
        assert drafts["tokens_per_step"] > 1


def test_audit_catches_a_sampler_that_draws_colder_than_it_says(generate: Any, command: Command) -> None:
    status, out, _ = command("audit", generate(Biased))
    assert status == 5
    assert "level 0.001: the draws do not fit (so many draws show distances from 0.028)" in out


def test_audit_catches_drafts_from_other_distributions_than_remembered(generate: Any, command: Command) -> None:
    status, out, _ = command("audit", generate(Forgetful, "--draft-tokens", 3, "--verify", "rejection"))
    assert status == 5, out
