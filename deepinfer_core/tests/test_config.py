"""Settings: precedence, origins, conversion, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.config import EngineConfig, settings_by_key
from deepinfer_core.errors import ConfigError, NotSupported


def refusal(flags=None, **sources) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.resolve(flags, **({"environ": {}} | sources))
    return caught.value


def settings_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_resolve_takes_flag_over_file_over_environment_over_default(tmp_path):
    path = settings_file(tmp_path, 'backend = "filed"\nseed = 2\noverlap = false\n')
    environ = {"DEEPINFER_BACKEND": "env", "DEEPINFER_SEED": "3", "DEEPINFER_MAX_NUM_SEQS": "9"}
    config = EngineConfig.resolve({"backend": "flagged", "device": None}, file=path, environ=environ)
    assert (config.backend, config.seed, config.max_num_seqs, config.sampler) == ("flagged", 2, 9, "canonical")
    assert [config.origin(key) for key in ("backend", "seed", "max_num_seqs", "sampler", "device")] == [
        "flag",
        f"file {path}",
        "environment DEEPINFER_MAX_NUM_SEQS",
        "default",
        "default",
    ]


def test_resolve_reads_the_plugin_table(tmp_path):
    text = '[plugins]\ndisable = ["a"]\nallow = []\n[plugins.prefer]\n"backend:toy" = "acme"\n'
    config = EngineConfig.resolve(file=settings_file(tmp_path, text), environ={})
    assert config.plugins.disable == ("a",)
    assert config.plugins.allow == ()
    assert config.plugins.prefer == {"backend:toy": "acme"}
    assert config.origin("plugins.enable") == "default"


def test_resolve_with_the_plugin_environment_reads_its_special_names():
    environ = {"DEEPINFER_PLUGINS": "", "DEEPINFER_STRICT_PLUGINS": "1", "DEEPINFER_TRACE_HOOKS": "false"}
    config = EngineConfig.resolve(environ=environ)
    assert (config.plugins.allow, config.strict_plugins, config.trace_hooks) == ((), True, False)
    assert EngineConfig.resolve(environ={"DEEPINFER_PLUGINS": "a, b"}).plugins.allow == ("a", "b")
    assert EngineConfig.resolve(environ={}).plugins.allow is None


def test_resolve_with_an_empty_variable_keeps_the_default():
    assert EngineConfig.resolve(environ={"DEEPINFER_SEED": "", "DEEPINFER_BACKEND": ""}).backend == "auto"


def test_resolve_with_an_unknown_variable_warns_with_the_nearest_name():
    config = EngineConfig.resolve(environ={"DEEPINFER_BACKEN": "x", "DEEPINFER_QQQQQQ": "", "OTHER": "1"})
    assert config.warnings == (
        "W_ENV: DEEPINFER_BACKEN is not a setting, and is ignored; did you mean DEEPINFER_BACKEND?",
        "W_ENV: DEEPINFER_QQQQQQ is not a setting, and is ignored",
    )


def test_resolve_leaves_variables_of_first_party_plugins_to_them():
    environ = {"DEEPINFER_CUDA_CACHE": "/kernels", "DEEPINFER_CUDACACHE": "x"}
    assert EngineConfig.resolve(environ=environ).warnings == (
        "W_ENV: DEEPINFER_CUDACACHE is not a setting, and is ignored",
    )


def test_resolve_with_unknown_file_keys_lists_them_all(tmp_path):
    path = settings_file(tmp_path, "sede = 1\n[plugins]\ndissable = []\n[zzz]\nx = 1\n")
    assert str(refusal(file=path)) == (
        f"E_CONFIG: {path}: unknown settings 'sede' (did you mean 'seed'?), 'plugins.dissable' (did you mean "
        "'plugins.disable'?), 'zzz'\n"
        "  reason: a misspelt setting would be ignored without a word\n"
        "  remedy: correct or remove it; deepinfer generate --help lists the settings"
    )


def test_resolve_with_an_unknown_argument_names_the_nearest():
    assert refusal({"kv_memry": 1}).what == "no setting named 'kv_memry'; did you mean 'kv_memory'?"


def test_seed_that_nobody_gave_is_none():
    assert EngineConfig.resolve(environ={}).seed is None
    assert EngineConfig.resolve({"seed": 0}, environ={}).seed == 0


@pytest.mark.parametrize(("key", "field"), [("n", "n"), ("num_samples", "n"), ("max_tokens", "max_tokens")])
def test_resolve_with_a_field_of_requests_says_where_it_belongs(tmp_path, key, field):
    for error in (refusal({key: 3}), refusal(file=settings_file(tmp_path, f"{key} = 3\n"))):
        assert f"{field} belongs to each request" in error.remedy
        assert "did you mean" not in error.what


@pytest.mark.parametrize("text", ["seed = ", "\x00", "seed = " + "[" * 10_000])
def test_resolve_with_a_file_that_is_no_toml_says_so(tmp_path, text):
    path = settings_file(tmp_path, text)
    assert refusal(file=path).what == f"{path} is not TOML"


def test_resolve_with_a_missing_file_says_so(tmp_path):
    error = refusal(file=tmp_path / "none.toml")
    assert (error.what, error.reason) == (
        f"cannot read the settings file {tmp_path / 'none.toml'}",
        "No such file or directory",
    )


def test_resolve_with_a_model_in_the_file_is_relative_to_the_file(tmp_path):
    path = settings_file(tmp_path, 'model = "ckpt"\n')
    assert EngineConfig.resolve(file=path, environ={}).model == str(tmp_path / "ckpt")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        ("4096", 4096),
        ("64kib", 65536),
        ("0.1GB", 10**8),
        ("7b", 7),
        ("64m", 64 * 2**20),
        ("64M", 64 * 2**20),
    ],
)
def test_resolve_reads_sizes(text, size):
    assert EngineConfig.resolve({"kv_memory": text}, environ={}).kv_memory == size


@pytest.mark.parametrize("value", ["", "lots", "-1", "12 parsecs", "1.5", "1e9", True, 0, 1.5, [1], "9" * 40])
def test_resolve_refuses_what_is_no_size(value):
    error = refusal({"kv_memory": value})
    assert error.what == f"kv_memory must be a size such as 512MiB from 1 to 281474976710656, got {value!r}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", "1.0", "seed must be an integer, taken modulo 18446744073709551616, got '1.0'"),
        ("seed", True, "seed must be an integer, taken modulo 18446744073709551616, got True"),
        ("max_num_seqs", "0", "max_num_seqs must be an integer from 1 to 65536, got '0'"),
        ("numeric_mode", "exakt", "numeric_mode must be one of released, exact, got 'exakt'; did you mean 'exact'?"),
        ("validation", 3, "validation must be one of off, boundary, full, got 3"),
        ("chunked_prefill", "maybe", "chunked_prefill must be true or false, got 'maybe'"),
        ("backend", "", "backend must be a text, got ''"),
        ("plugins.disable", [1], "plugins.disable must be names, comma separated, got [1]"),
        ("plugins.prefer", "x", "plugins.prefer must be KIND:NAME=DISTRIBUTION, got 'x'"),
    ],
)
def test_resolve_refuses_a_value_out_of_range(key, value, message):
    assert refusal({key: value}).what == message


def test_resolve_names_the_source_of_a_refused_value(tmp_path):
    assert refusal({"max_num_seqs": 0}).reason == "set by --max-num-seqs"
    assert refusal({"observe.metrics_port": -1}).reason == "set by --metrics-port"
    assert refusal({"plugins.enable": 3}).reason == "set by --plugin"
    assert refusal({"max_num_seqs": 0}, flag_origin="argument").reason == "set by argument max_num_seqs"
    assert refusal(environ={"DEEPINFER_MAX_NUM_SEQS": "x"}).reason == "set by DEEPINFER_MAX_NUM_SEQS"
    path = settings_file(tmp_path, "max_num_seqs = 0\n")
    assert refusal(file=path).reason == f"set by file {path}"


@pytest.mark.parametrize(("value", "seed"), [(-5, 2**64 - 5), ("-5", 2**64 - 5), (str(-(2**200) + 3), 3)])
def test_resolve_takes_any_seed_modulo_2_64(value, seed):
    assert EngineConfig.resolve({"seed": value}, environ={}).seed == seed


def test_resolve_accepts_the_ends_of_a_range():
    config = EngineConfig.resolve({"seed": str(2**64 - 1), "max_num_seqs": 1}, environ={})
    assert (config.seed, config.max_num_seqs) == (2**64 - 1, 1)


@pytest.mark.parametrize(
    ("given", "values"), [("1.5", (1.5,)), (" 1,0.5, 2", (1.0, 0.5, 2.0)), (2, (2.0,)), ([1, 0.25], (1.0, 0.25))]
)
def test_resolve_reads_one_number_or_several(given, values):
    assert EngineConfig.resolve({"confidence_temperature": given}, environ={}).confidence_temperature == values


@pytest.mark.parametrize("given", ["", "0", "-1", "1,", "nan", "inf", "one", [], [True], [None], "1;2", 10**400])
def test_resolve_refuses_what_is_no_list_of_positive_numbers(given):
    with pytest.raises(ConfigError, match="confidence_temperature must be numbers above 0"):
        EngineConfig.resolve({"confidence_temperature": given}, environ={})


def test_confidence_temperature_has_the_name_of_the_original_in_the_environment():
    environ = {"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1.25,2"}
    assert EngineConfig.resolve(environ=environ).confidence_temperature == (1.25, 2.0)


@pytest.mark.parametrize(
    ("given", "ids"), [("", ()), ("7", (7,)), ("3, 1,3,", (1, 3)), ([5, 2], (2, 5)), (["5", "2"], (2, 5)), ((), ())]
)
def test_resolve_reads_token_ids(given, ids):
    config = EngineConfig.resolve({"decode_token_blacklist": given}, environ={})
    assert config.decode_token_blacklist == ids


@pytest.mark.parametrize("given", ["-1", "1;2", "one", "1.5", str(2**31), [True], [None], [1.0], 5, "1,x"])
def test_resolve_refuses_what_is_no_list_of_token_ids(given):
    with pytest.raises(ConfigError, match="decode_token_blacklist must be token ids, comma separated"):
        EngineConfig.resolve({"decode_token_blacklist": given}, environ={})


def test_values_of_an_option_given_several_times_are_shown_as_typed() -> None:
    with pytest.raises(ConfigError, match="comma separated, got '1,x'\n"):
        EngineConfig.resolve({"decode_token_blacklist": ("1", "x")}, environ={})


def test_sampler_settings_have_the_names_of_the_original_in_the_environment():
    environ = {"DEEPINFER_DECODE_TOKEN_BLACKLIST": "4,2", "DEEPINFER_SAMPLER_FORCE_TOPK": "50"}
    config = EngineConfig.resolve(environ=environ)
    assert (config.decode_token_blacklist, config.sampler_force_topk) == ((2, 4), 50)


def test_resolve_refuses_groups():
    with pytest.raises(NotSupported) as caught:
        EngineConfig.resolve({"dp": 2, "ep": "8"}, environ={})
    assert str(caught.value) == (
        "E_UNSUPPORTED: dp=2, ep=8 was asked for, and this release runs one device per engine\n"
        "  reason: the scheduler can step in a data-parallel group; models, caches and engines run on one device\n"
        "  remedy: leave --dp and --ep out, and start one engine per device"
    )
    assert EngineConfig.resolve({"dp": 1}, environ={}).dp == 1


def test_config_is_frozen():
    with pytest.raises(AttributeError):
        EngineConfig().seed = 3  # type: ignore[misc]


def test_every_default_is_a_value_of_its_setting():
    from deepinfer_core.settings import read_value

    config = EngineConfig()
    for key, declared in settings_by_key().items():
        assert read_value(key, declared, config.get(key), "default") == config.get(key)
        assert declared.help.endswith(".")


def test_environment_names_are_distinct():
    names = [declared.env_name(key) for key, declared in settings_by_key().items()]
    assert len(names) == len(set(names))


def test_every_table_of_settings_is_read_from_a_file(tmp_path: Path) -> None:
    config = EngineConfig.resolve(file=settings_file(tmp_path, "[observe]\nmetrics_port = 9464\n"), environ={})
    assert config.observe.metrics_port == 9464
    assert config.origin("observe.metrics_port").startswith("file ")
    tables = {key.partition(".")[0] for key in settings_by_key() if "." in key}
    for table in sorted(tables):
        unknown = settings_file(tmp_path, f"[{table}]\nzzz = 1\n")
        with pytest.raises(ConfigError, match=rf"unknown setting '{table}\.zzz'"):
            EngineConfig.resolve(file=unknown, environ={})


def test_paths_of_observation_in_a_file_are_relative_to_the_file(tmp_path: Path) -> None:
    path = settings_file(tmp_path, '[observe]\nstep_log = "steps.jsonl"\ntrace_file = "spans.jsonl"\n')
    observe = EngineConfig.resolve(file=path, environ={}).observe
    assert (observe.step_log, observe.trace_file) == (str(tmp_path / "steps.jsonl"), str(tmp_path / "spans.jsonl"))
    path = settings_file(tmp_path, '[observe]\nstep_log = "-"\ntrace_file = "global"\n')
    observe = EngineConfig.resolve(file=path, environ={}).observe
    assert (observe.step_log, observe.trace_file) == ("-", "global")


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("observe.metrics_host", "127.0.0.1", "metrics_port"),
        ("observe.metrics_public", True, "metrics_port"),
        ("observe.step_log_interval", 5, "step_log"),
    ],
)
def test_setting_that_does_nothing_without_another_is_refused_beside_its_absence(tmp_path, key, value, needed):
    error = refusal({key: value})
    assert error.what == f"{key} does nothing without observe.{needed}"
    assert error.reason == f"set by --{key.partition('.')[2].replace('_', '-')}"
    assert error.remedy.startswith(f"give --{needed.replace('_', '-')} ")
    assert EngineConfig.resolve({key: value, f"observe.{needed}": 0 if needed == "metrics_port" else "-"}, environ={})
    text = f"[observe]\n{key.partition('.')[2]} = {str(value).lower() if value in (True, 5) else repr(value)}\n"
    assert refusal(None, file=settings_file(tmp_path, text)).reason.endswith("settings.toml")


def test_setting_of_the_environment_may_wait_for_another():
    config = EngineConfig.resolve(environ={"DEEPINFER_LOGGING_INTERVAL_STEP": "5"})
    assert (config.observe.step_log, config.observe.step_log_interval) == (None, 5)
    assert EngineConfig.resolve({"observe.metrics_public": False}, environ={}).observe.metrics_port is None
