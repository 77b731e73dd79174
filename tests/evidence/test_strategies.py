"""Names of strategies: who may have one, where they are looked for, and what is refused."""

from __future__ import annotations

import pytest

from rankfall import register_strategy, strategy_registry
from rankfall.model import SpecError, UsageError
from rankfall.strategy_registry import diagnose_by, find_strategy, known_strategies
from rankfall.verdict.diagnose import BUILT_IN, CAUSAL, diagnose
from support.cases import case, left, piece

RULES = "def last(case): return None\nnumber = 3\n"


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(strategy_registry, "_registered", {})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes an installed package that declares strategies."""

    def make(points, *, name="ours_rules", code=RULES):
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "\n".join(f"{key} = {value}" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[rankfall.strategies]\n{lines}\n")
        monkeypatch.syspath_prepend(str(folder))

    return make


def test_no_name_is_causal():
    assert find_strategy(None) is CAUSAL
    assert known_strategies()[:3] == tuple(BUILT_IN) == ("causal", "earliest", "first-listed")


def test_errors_s11_an_unknown_name_is_refused_with_its_field_and_the_allowed_ones():
    register_strategy("ours", diagnose)
    with pytest.raises(SpecError, match=r"\$\.strategy: there is no strategy 'newest'") as caught:
        find_strategy("newest")
    assert caught.value.hint == "allowed: causal, earliest, first-listed, ours"


@pytest.mark.parametrize("name", ["", "Ours", "a b", "-x", "x" * 41, "a\nb", "é"])
def test_a_name_that_no_flag_can_say_is_refused(name):
    with pytest.raises(UsageError, match="not a name of a strategy"):
        register_strategy(name, diagnose)
    with pytest.raises(SpecError):
        find_strategy(name)


def test_a_taken_name_is_refused_and_the_same_again_is_not():
    with pytest.raises(UsageError, match="already"):
        register_strategy("causal", diagnose)
    register_strategy("ours", diagnose)
    register_strategy("ours", diagnose)
    with pytest.raises(UsageError, match="already"):
        register_strategy("ours", lambda _: None)
    assert find_strategy("ours").pick is diagnose


def test_one_of_this_process_is_refused_where_another_one_needs_it():
    register_strategy("ours", diagnose)
    with pytest.raises(SpecError, match="in this process only"):
        find_strategy("ours", elsewhere=True)


def test_errors_s11_a_package_declares_one(package):
    package({"last": "ours_rules:last", "Bad Name": "ours_rules:last"})
    assert "last" in known_strategies()
    assert "Bad Name" not in known_strategies()
    assert find_strategy("last", elsewhere=True).pick(None) is None


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("absent_rules:last", RULES, "cannot be loaded: ModuleNotFoundError"),
        ("ours_rules:absent", RULES, "cannot be loaded: AttributeError"),
        ("ours_rules:last", "raise RuntimeError('no licence')", "cannot be loaded: RuntimeError: no licence"),
        ("ours_rules:number", RULES, "is a int and not callable"),
    ],
)
def test_one_that_cannot_be_loaded_is_refused_with_the_reason(package, monkeypatch, target, code, words):
    monkeypatch.delitem(__import__("sys").modules, "ours_rules", raising=False)
    package({"last": target}, code=code)
    with pytest.raises(SpecError, match=words):
        find_strategy("last")


def test_one_that_two_packages_declare_is_refused(package):
    package({"last": "ours_rules:last"})
    package({"last": "their_rules:last"}, name="their_rules")
    with pytest.raises(SpecError, match="2 installed packages declare 'last'"):
        find_strategy("last")


def test_a_package_cannot_take_the_name_of_a_built_in_one(package):
    package({"causal": "ours_rules:last"})
    assert find_strategy("causal") is CAUSAL
    assert known_strategies().count("causal") == 1


def test_a_run_whose_strategy_is_gone_is_explained_by_causal():
    told = case([left(0, 1), left(1, 1)], [piece("user_code_exception", 1)])
    found = diagnose_by("gone", told).verdict
    assert found.rank == 1
    assert "there is no strategy 'gone'" in found.missing[0]
    assert "the strategy causal was used" in found.missing[0]
