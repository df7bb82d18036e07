"""Mutation check of the core's guards: small wrong changes of the C sources, each of which the tests must notice.

``python native/tests/mutants.py [name ...]``; needs gcc. Every mutant is applied to a copy; its file is compiled again,
and the gate's tests run on the result until one fails: the seeded C programs first, then the Python suite of
``KILLERS``. Prints one line a mutant and the survivors; exit status 1 if there are any.

A mutant whose text is no longer in the sources is reported as stale: write the guard's new text here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SEED, CALLS = "20251129", {"fuzz_core": "60000", "fuzz_api": "20000"}
WRAP = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]
KILLERS = (
    "test_reference_scheduler.py",
    "test_kept_places.py",
    "test_kept_checks.py",
    "test_prefix.py",
    "test_policy.py",
    "test_append.py",
    "test_transfer.py",
    "test_abort.py",
    "test_errors.py",
    "test_varlen.py",
    "test_fork.py",
    "test_prefix_settings.py",
    "test_pin.py",
    "test_sampler_wishes.py",
    "test_pack_reference.py",
    "test_verify.py",
)
TIME_LIMIT_S = 240


@dataclass(frozen=True)
class Mutant:
    """``old`` occurs once in ``file``; ``new`` takes its place."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "release_at_wrong_epoch", "di_core.c", "s->blocks[--s->n_blocks], s->last_step)", "s->blocks[--s->n_blocks], 0)"
    ),
    Mutant("slot_released_at_wrong_epoch", "di_core.c", "*handle[i].slot, s->last_step)", "*handle[i].slot, 0)"),
    Mutant("skip_limbo", "di_pool.c", "if (p->stream_ordered || u->last_use <= p->done) {", "if (1) {"),
    Mutant(
        "epoch_is_last_release", "di_pool.c", "if (epoch > u->last_use) u->last_use = epoch;", "u->last_use = epoch;"
    ),
    Mutant("limbo_leaves_a_step_early", "di_limbo.c", "b->epoch <= done &&", "b->epoch <= done + 1 &&"),
    Mutant("limbo_newest_first", "di_limbo.c", "b->epoch < best->epoch", "b->epoch > best->epoch"),
    Mutant("handle_not_consumed", "di_core.c", "        *handle[i].slot = 0;\n", ""),
    Mutant(
        "blocks_released_head_first",
        "di_core.c",
        "s->blocks[--s->n_blocks], s->last_step)",
        "s->blocks[s->n_blocks - 1 - --s->n_blocks], s->last_step)",
    ),
    Mutant("hold_ignored", "di_policy_decode.c", "if (s->holds < c->cfg.depth) {", "if (0) {"),
    Mutant("hold_for_ever", "di_policy_decode.c", "if (s->holds < c->cfg.depth) {", "if (1) {"),
    Mutant(
        "wrong_victim",
        "di_policy_decode.c",
        "return x != y ? x > y : a->uid > b->uid;",
        "return x != y ? x < y : a->uid > b->uid;",
    ),
    Mutant(
        "victim_ties_reversed",
        "di_policy_decode.c",
        "return x != y ? x > y : a->uid > b->uid;",
        "return x != y ? x > y : a->uid < b->uid;",
    ),
    Mutant("missing_generation_bump", "di_policy_decode.c", "    s->generation++;\n", ""),
    Mutant("preempted_goes_to_the_tail", "di_policy_decode.c", "s->queue_class = 1;", "s->queue_class = 2;"),
    Mutant("limbo_is_not_on_its_way", "di_policy_decode.c", "int64_t n = di_pool_limbo(&c->main);", "int64_t n = 0;"),
    Mutant(
        "growth_one_step_short",
        "di_policy_decode.c",
        "(int64_t)(s->inflight + 1) * c->dim.q;\n    if (end",
        "(int64_t)s->inflight * c->dim.q;\n    if (end",
    ),
    Mutant(
        "growth_off_by_one",
        "di_policy_decode.c",
        "if (end <= (int64_t)s->n_blocks * c->cfg.block_size) return 0;",
        "if (end <= (int64_t)s->n_blocks * c->cfg.block_size + 1) return 0;",
    ),
    Mutant("reserve_of_one_step", "di_policy_decode.c", "used < 2 * c->dim.q;", "used < c->dim.q;"),
    Mutant(
        "overrun_of_certain_ends",
        "di_policy_decode.c",
        "if (s->awaits_first || di_seq_is_certain_to_finish(s, c->cfg.max_model_len)) return 0;",
        "if (s->awaits_first) return 0;",
    ),
    Mutant(
        "admission_above_the_watermark", "di_policy_prefill.c", "if (is_first && (!may_admit || ", "if (is_first && ("
    ),
    Mutant("admission_ignores_the_reserve", "di_policy_prefill.c", "+ reserve - hit->n_blocks;", "- hit->n_blocks;"),
    Mutant("hit_counts_idle_blocks_twice", "di_policy_prefill.c", "- hit->n_idle && has_slot", "&& has_slot"),
    Mutant("second_chunked_prompt", "di_policy_prefill.c", "if (!is_last && is_normal) break;", "if (0) break;"),
    Mutant(
        "queue_by_class_behind_priority",
        "di_queue.c",
        "2 * (s->priority - DI_PRIORITY_LOW) + s->queue_class;",
        "2 * (s->priority - DI_PRIORITY_LOW) + 1;",
    ),
    Mutant(
        "priority_ignored",
        "di_queue.c",
        "return s->queue_class == 0 ? 0 : 2 * (s->priority - DI_PRIORITY_LOW) + s->queue_class;",
        "return s->queue_class;",
    ),
    Mutant("stale_rows_count_as_live", "di_output.h", "r->seq->generation == r->generation && ", ""),
    Mutant(
        "drafts_after_the_stop_are_kept",
        "di_commit.c",
        "j < accepted + is_ok && reason == DI_FINISH_NONE",
        "j < accepted + is_ok",
    ),
    Mutant("token_of_a_failed_row_is_kept", "di_commit.c", "j < accepted + is_ok && ", "j <= accepted && "),
    Mutant("cached_counts_rejected_drafts", "di_append.c", "s->cached += n;", "s->cached += r->q;"),
    Mutant("stop_ids_go_on", "di_append_put.h", "(2) << b->accepted) - 1)", "(1) << b->accepted) - 1)"),
    Mutant(
        "stop_id_of_a_row_without_drafts",
        "di_append.c",
        "if (di_seq_may_stop(s, token) && di_seq_is_stop(s, token)) break;",
        "",
    ),
    Mutant("accepted_stop_ids_go_on", "di_append_put.h", "if (di_seq_is_stop(s, b->verified[j])) return 1;", ";"),
    Mutant("only_the_last_stop_id", "di_seq.c", "s->stop_mask |= di_seq_stop_bits", "s->stop_mask = di_seq_stop_bits"),
    Mutant(
        "index_of_an_accepted_draft",
        "di_append_put.h",
        "o->output_index[e] = ++index;",
        "o->output_index[e] = index++;",
    ),
    Mutant("kept_places_of_other_rows", "di_pack_decode.c", "is_even && step->n_placed == 0 &&", "is_even &&"),
    Mutant("kept_places_of_spare_arrays", "di_pack_decode.c", " && s->kept_rows == step->rows", ""),
    Mutant("quick_rows_of_ended_requests", "di_append.c", " && s->phase == DI_PHASE_RUNNING", ""),
    Mutant("ids_below_none_pass", "di_output.c", "(ids[x] < -1) | ", ""),
    Mutant("sampler_ids_unread_but_kept", "di_check.c", "if (t->is_plain) kept", "if (1) kept"),
    Mutant("verified_ids_unread_but_kept", "di_check.c", "if (t->is_verified_plain) kept", "if (1) kept"),
    Mutant("draft_ids_unread_but_kept", "di_check.c", "t->drafts && t->are_drafts_tokens", "1"),
    Mutant("plain_events_of_any_row", "di_commit.c", "        a->plain = 0;\n", ""),
    Mutant("plain_events_of_ended_requests", "di_events.c", "        a->plain = 0;\n", ""),
    Mutant("flags_of_an_accepted_draft", "di_append_put.h", "= DI_EVENT_FLAG_FROM_DRAFT;", "= DI_EVENT_FLAG_LAST;"),
    Mutant("sampled_token_counts_as_drafted", "di_append.c", "= (int16_t)(q - 1);", "= (int16_t)q;"),
    Mutant(
        "sampled_token_counts_as_accepted",
        "di_append.c",
        "o.accepted[e] = (int16_t)row.accepted;",
        "o.accepted[e] = (int16_t)(row.accepted + 1);",
    ),
    Mutant("values_of_another_request", "di_core.c", "    di_varlen_forget_row(&c->varlen, s->row_slot);\n", ""),
    Mutant("values_of_the_wrong_round", "di_varlen.h", "(~old & DI_ROUND_FLIP)", "(old & DI_ROUND_FLIP)"),
    Mutant("no_drafts_count_as_some", "di_varlen.h", "(!drafts || drafts[0] < 0 ? DI_ROUND_NONE : 0)", "0"),
    Mutant("stop_bit_of_a_high_nibble", "di_append_put.h", "low)), 16)", "low)), 15)"),
    Mutant("flags_of_the_row_before", "di_append_put.h", "    o->flags[e] = 0;", "    ;"),
    Mutant("flags_left_behind", "di_append.c", "DI_EVENT_ROOM * sizeof *o.flags", "0"),
    Mutant("five_tokens_as_four", "di_append.c", "row.accepted < 4 &&", "row.accepted < 5 &&"),
    Mutant(
        "four_logprobs_without_the_sampled_one",
        "di_append_put.h",
        "di_choose4(is_last, _mm_castps_si128(_mm_set1_ps(b->logprob)), said)",
        "said",
    ),
    Mutant("no_room_behind_tokens", "di_seq.c", "s->tokens + cap_tokens + DI_EVENT_ROOM", "s->tokens + cap_tokens"),
    Mutant("drafts_of_another_row", "di_append.c", "step->rows[i].row_slot", "step->rows[end - 1].row_slot"),
    Mutant("drafts_copied_short", "di_append.c", "    memcpy(to + k - 4, from + k - 4, FOUR);\n", ""),
    Mutant(
        "sizes_left_out_too_early", "di_verify_total.c", "ahead[x] = rest = least[x]", "ahead[x] = rest = 2 * least[x]"
    ),
    Mutant("blocks_passed_over", "di_verify_share.c", "&& !has_unit(h.units", "&& has_unit(h.units"),
    Mutant("sizes_skipped_too_easily", "di_verify_total.c", "SURELY = 1 - 1e-9", "SURELY = 1.01"),
    Mutant(
        "drafts_stay_behind_at_hand_off",
        "di_transfer.c",
        "if (s->has_drafts) memcpy(s->handed",
        "if (0) memcpy(s->handed",
    ),
    Mutant(
        "sent_drafts_stay_behind",
        "di_transfer.c",
        "if (s->has_drafts) memcpy(di_core_drafts",
        "if (0) memcpy(di_core_drafts",
    ),
    Mutant("changed_views_not_noted", "di_layout.c", "        layout->version = 0;\n", ""),
    Mutant(
        "list_of_an_unread_version",
        "di_layout.c",
        "    else layout->n_changed = -1;",
        "    else layout->n_changed += 0;",
    ),
    Mutant("changed_word_not_listed", "di_layout.c", "if (layout->n_changed >= 0) layout", "if (at % 16) layout"),
    Mutant(
        "last_chunk_is_queued_again",
        "di_commit.c",
        "if (r->is_last_chunk) s->awaits_first = 0;",
        "if (r->is_last_chunk) s->awaits_first = 1;",
    ),
    Mutant("commit_in_any_order", "di_commit.c", "if (id != c->committed + 1 || ", "if ("),
    Mutant(
        "block_registered_too_early",
        "di_prefix.c",
        "while ((int64_t)(s->n_registered + 1) * size <= s->cached) {",
        "while ((int64_t)(s->n_registered + 1) * size <= s->cached + 1) {",
    ),
    Mutant("hit_leaves_nothing_to_run", "di_prefix.c", "most = (s->len - 1) / size;", "most = s->len / size;"),
    Mutant("hit_without_replay", "di_prefix.c", "hit - x->replay_len[is_kept];", "hit;"),
    Mutant("kept_rows_are_skipped", "di_prefix.c", "return start < most ? start : most;", "return start;"),
    Mutant("exact_hit_counts_behind_the_cut", "di_prefix.c", "s->keep_from - x->replay_len[1]", "s->keep_from"),
    Mutant(
        "window_reaches_in_front_of_the_cut",
        "di_pack_replay.c",
        "max32(r->seq->swa_valid_start, r->seq->keep_from)",
        "r->seq->swa_valid_start",
    ),
    Mutant(
        "row_in_front_of_the_cut_is_stored", "di_pack_replay.c", "max32(r->seq->keep_from, end - ring)", "end - ring"
    ),
    Mutant("chunk_without_a_kept_row", "di_pack_replay.c", "r->start + r->q - 1));", "r->start + r->q));"),
    Mutant("cut_moves_with_a_fork", "di_fork.c", "    s->keep_from = p->keep_from;", "    s->keep_from += 0;"),
    Mutant(
        "hash_is_trusted",
        "di_prefix_index.c",
        "if (memcmp(di_prefix_index_tokens(x, (int32_t)block), tokens, (size_t)x->block_size * sizeof *tokens) == 0)",
        "if (tokens)",
    ),
    Mutant("parent_is_not_compared", "di_prefix_index.c", "n->parent_life != parent.life || ", ""),
    Mutant(
        "evicted_block_stays_in_the_index",
        "di_pool.c",
        "            if (p->evict) p->evict(p->evict_owner, (int32_t)unit);\n",
        "",
    ),
    Mutant(
        "cached_before_free",
        "di_pool.c",
        "uint32_t unit = p->free.head;",
        "uint32_t unit = p->cached.head ? 0 : p->free.head;",
    ),
    Mutant(
        "most_recent_is_evicted",
        "di_pool.c",
        "unit = p->cached.head;\n            unlink",
        "unit = p->cached.tail;\n            unlink",
    ),
    Mutant("clone_source_is_not_held", "di_fork.c", "    if (!code) code = hold_source(p, source, step);\n", ""),
    Mutant("clone_of_an_overwritten_ring", "di_fork.c", " && rings_reach(c, parent, child);", ";"),
    Mutant(
        "child_shares_the_block_it_writes",
        "di_fork.c",
        "shared = (child->len - 1) / size;",
        "shared = child->len / size;",
    ),
    Mutant("children_of_an_ended_parent_are_lost", "di_core.c", "if (c->forks.waiting) di_fork_end(c, s);", ""),
    Mutant("unpinned_at_once", "di_pin.c", "record->units[i], c->launched)", "record->units[i], 0)"),
    Mutant("pin_of_a_free_unit", "di_pin.c", "if (p->units[units[i]].state != DI_UNIT_HELD)", "if (0)"),
    Mutant(
        "abort_ends_a_transfer_at_once", "di_transfer.c", "if (s->phase != DI_PHASE_HANDOFF) return", "if (1) return"
    ),
    Mutant("handoff_before_the_step_is_done", "di_transfer.c", "if (s->last_step > c->done)", "if (0)"),
    Mutant(
        "reservation_ignores_the_reserve", "di_transfer.c", "(int64_t)blocks + di_policy_reserve(c)", "(int64_t)blocks"
    ),
    Mutant("corrected_lengths_of_another_sum", "di_varlen.c", "if (sum != step->t)", "if (0)"),
    Mutant("reused_keys_are_stored", "di_pack_prefill.c", "j * ratio < r->seq->store_from ? -1 : ", ""),
    Mutant("reset_is_forgotten", "di_prefix.c", "if (!x->is_on || s->chain_epoch != x->epoch)", "if (!x->is_on)"),
    Mutant("twin_chain_is_trusted", "di_prefix.c", "if (s->has_twins && ", "if (0 && "),
    Mutant("bad_blocks_stay_offered", "di_commit.c", "    di_prefix_withdraw(&c->prefix, s);\n", ""),
    Mutant("clone_source_is_let_go", "di_fork.c", "di_pool_release(p, unit, step);", "di_pool_release(p, unit, 0);"),
    Mutant("rejected_drafts_are_overlooked", "di_fork.c", "(f ? f * q - 1 : q - 2);", "(f ? f * q - 1 : -1);"),
    Mutant("history_lost_by_preemption", "di_policy_decode.c", "s->holds = s->is_counted = 0;", "s->holds = 0;"),
    Mutant(
        "history_before_the_prompt_ends",
        "di_policy_rows.c",
        "!s->is_counted && (!is_prefill || is_last_chunk)",
        "!s->is_counted",
    ),
    Mutant(
        "score_of_the_first_output_token",
        "di_policy_rows.c",
        ": s->prompt_len - 1, n = end",
        ": s->prompt_len, n = end",
    ),
    Mutant(
        "prompt_score_one_early",
        "di_commit.c",
        "s->prompt_logprobs[r->start + j + 1] =",
        "s->prompt_logprobs[r->start + j] =",
    ),
    Mutant(
        "prompt_told_again",
        "di_commit.c",
        "a->n_prompt += s->prompt_len;\n    s->prompt_told = 1;",
        "a->n_prompt += s->prompt_len;",
    ),
    Mutant(
        "bias_of_the_first_row_only",
        "di_pack_wants.c",
        "row < s->first_row[i] + s->row_count[i] && q->n_bias",
        "row < s->first_row[i] + 1 && q->n_bias",
    ),
    Mutant(
        "penalty_where_a_prompt_goes_on", "di_pack_wants.c", "if (step->rows[i].is_last_chunk) continue;", "continue;"
    ),
    Mutant(
        "history_of_committed_prompt_only",
        "di_pack_wants.c",
        "r->gets_history ? r->full_len : 0",
        "r->gets_history ? r->seq->prompt_len : 0",
    ),
)

UNCHANGED = Mutant("unchanged", "di_core.c", "", "")


def build() -> object:
    """``build_ffi.py``, for the wrapper of the Python library."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("build_ffi", HERE / "build_ffi.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(HERE / "build_ffi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bench:
    """The unchanged core compiled once; mutants replace single objects."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.module = build()
        self.objects: dict[str, Path] = {}
        (folder / "base").mkdir()
        # A copy, so that an edit meanwhile is not taken for a killed mutant.
        self.tests = Path(
            shutil.copytree(HERE / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        )
        for source in sorted((HERE / "src").glob("di_*.c")):
            self.objects[source.name] = self.compile(HERE, source, folder / "base" / f"{source.stem}.o")
        wrapper = folder / "_native.c"
        self.module.ffi.emit_c_code(str(wrapper))
        python = [f"-I{sysconfig.get_paths()['include']}", "-DPy_LIMITED_API=0x030b0000"]
        self.wrapper = self.compile(HERE, wrapper, folder / "base" / "_native.o", python)
        self.drivers = {}
        for target in CALLS:
            for source in [*sorted((HERE / "fuzz").glob(f"{target}*.c")), HERE / "fuzz" / "standalone.c"]:
                self.drivers[source] = self.compile(HERE, source, folder / "base" / f"driver_{source.stem}.o")
        source = HERE / "tests" / "c" / "core_program.c"
        self.drivers[source] = self.compile(HERE, source, folder / "base" / "core_program.o")

    def compile(self, root: Path, source: Path, target: Path, more: list[str] | None = None) -> Path:
        optimise = "-O0" if source.name in ("di_checks.c", "_native.c") else "-O1"
        version = f'-DDI_VERSION="{self.module.VERSION}"'
        include = [f"-I{root / 'include'}", f"-I{root / 'src'}"]
        command = ["gcc", "-std=c11", "-pthread", "-fPIC", optimise, version, *include, *(more or [])]
        subprocess.run([*command, "-c", source, "-o", target], check=True, capture_output=True, text=True)
        return target

    def apply(self, mutant: Mutant, folder: Path) -> list[Path]:
        """Objects of the core with the change."""
        root = folder / "native"
        root.mkdir()
        for name in ("src", "include"):
            shutil.copytree(HERE / name, root / name, ignore=shutil.ignore_patterns("deepinfer_native"))
        path = root / "src" / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        is_header = mutant.file.endswith(".h")
        changed = [n for n in self.objects if n == mutant.file or (is_header and n != "di_checks.c")]
        objects = dict(self.objects)
        for name in changed:
            objects[name] = self.compile(root, root / "src" / name, folder / f"{name}.o")
        return list(objects.values())

    def programs(self, objects: list[Path], folder: Path) -> str | None:
        """The name of the C program that fails, or None."""
        for target, calls in CALLS.items():
            names = {f"{p.stem}" for p in (HERE / "fuzz").glob(f"{target}*.c")} | {"standalone"}
            drivers = [o for source, o in self.drivers.items() if source.stem in names]
            subprocess.run(["gcc", "-pthread", *drivers, *objects, "-lm", "-o", folder / target], check=True)
            if self.fails([folder / target, SEED, calls], folder):
                return target
        core = self.drivers[HERE / "tests" / "c" / "core_program.c"]
        subprocess.run(["gcc", "-pthread", *WRAP, core, *objects, "-lm", "-o", folder / "core_program"], check=True)
        return "core_program" if self.fails([folder / "core_program"], folder) else None

    def python(self, objects: list[Path], folder: Path) -> str | None:
        package = folder / "python" / "deepinfer_native"
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(HERE / "src" / "deepinfer_native", package, ignore=ignored)
        target = package / "_native.abi3.so"
        subprocess.run(["gcc", "-shared", "-pthread", self.wrapper, *objects, "-lm", "-o", target], check=True)
        path = os.pathsep.join([str(folder / "python"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        for name in KILLERS:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-m",
                "not slow",
                str(self.tests / name),
                "--rootdir",
                str(self.tests),
            ]
            if self.fails(command, self.tests, environment):
                return name
        return None

    @staticmethod
    def fails(command: list, folder: Path, environment: dict | None = None) -> bool:
        """A hang counts: the gate has time limits."""
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0

    def killer(self, mutant: Mutant) -> str | None:
        """What notices the mutant; None = it survives."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            objects = self.apply(mutant, folder)
            return self.programs(objects, folder) or self.python(objects, folder)


def stale() -> list[str]:
    """Names of mutants whose text does not occur exactly once."""
    return [m.name for m in MUTANTS if (HERE / "src" / m.file).read_text().count(m.old) != 1]


def main(names: list[str]) -> int:
    chosen = [m for m in MUTANTS if not names or m.name in names]
    old = stale()
    if old or not chosen:
        print("stale mutants:" if old else "no such mutant:", *(old or names), file=sys.stderr)
        return 2
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        started = time.monotonic()
        # What fails without a change would be taken for a killer of everything.
        failing = bench.killer(UNCHANGED)
        if failing:
            print(f"{failing} fails on the unchanged core", file=sys.stderr)
            return 2
        with ThreadPoolExecutor(max_workers=2) as pool:
            for mutant, killer in zip(chosen, pool.map(bench.killer, chosen), strict=True):
                print(f"{mutant.name:36s} {killer or 'SURVIVED'}", flush=True)
                survivors += [] if killer else [mutant.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed in {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
