"""Old programs give the same results on the shim, and rewritten for new libraries."""

import re
import warnings

import pytest
from covering import exhaustive_but
from programs import PROGRAMS, assert_same, run, with_imports_of

from rnncells import legacy
from rnncells.migrate.migration import migrate

# The shim does not support a gate function as the first argument.
ON_SHIM = [name for name, source in PROGRAMS.items() if "SHIM = False" not in source]


# Slow programs whose forms are those of `scanned_rl` and `time_loop`, of `rnn_wrapper`,
# and of `conv_lstm`.
LIKE_OTHERS = ["seq2seq", "training", "proposal"]
# Every program with all targets; every run tests one target of each other, in turn.
TARGETS = [("flax",), ("rnncells",)]
TARGET_OF = [
    (name, *TARGETS[k % 2])
    for k, name in enumerate(PROGRAMS)
    if name not in LIKE_OTHERS
]


@pytest.mark.parametrize(
    "name, to",
    exhaustive_but([(n, *to) for n in PROGRAMS for to in TARGETS], TARGET_OF),
)
def test_old_programs_give_the_same_results(name, to):
    """Equal parameter names, initial values (to the bit), and outputs."""
    source = PROGRAMS[name]
    expected = run(name, with_imports_of("old_linen", source))

    if name in ON_SHIM:
        on_shim = with_imports_of("rnncells.legacy", source)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert_same(run(name, on_shim), expected)
        assert_warnings(caught, f"{name}.py", on_shim.splitlines())
    migration = migrate(source.encode(), to)
    new = migration.data.decode()
    left = [note for note in migration.notes if note.why]
    assert new != source and new.count("# TODO(rnncells): ") == len(left)
    if "LEFT = " in source:
        assert len(left) == int(source.partition("LEFT = ")[2].split()[0])
    else:
        assert not left and ("rnncells" in new) == (to == "rnncells")
        assert_same(run(name, new), expected)


def assert_warnings(caught, file, lines):
    """Fails unless each old form warned once, at its line."""
    assert caught
    for warning in caught:
        assert issubclass(warning.category, DeprecationWarning)
        assert warning.filename == file
        text = str(warning.message)
        assert "was removed after Flax 0.6" in text and "Write " in text
        near = "".join(lines[warning.lineno - 1 : warning.lineno + 4])
        form = re.match(r"`(?:\w+\.)?(\w+)", text)[1]
        assert (form if form == "initialize_carry" else "(") in near
    places = [(warning.lineno, str(warning.message)) for warning in caught]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", ON_SHIM)
def test_strict_mode_raises_type_error(name):
    with legacy.strict(), pytest.raises(TypeError, match="was removed after Flax 0.6"):
        run(name, with_imports_of("rnncells.legacy", PROGRAMS[name]))


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rewriting_twice_equals_rewriting_once(name, to):
    once = migrate(PROGRAMS[name].encode(), to).data
    assert migrate(once, to).data is once


# The shim does not replace attributes of `flax` itself.
ON_SHIM_BY_NAME = [name for name in PROGRAMS if name != "qualified_names"]
LEFT = [name for name in ON_SHIM_BY_NAME if "LEFT = " in PROGRAMS[name]]


@pytest.mark.parametrize("name", [n for n in ON_SHIM_BY_NAME if n not in LEFT])
def test_programs_on_the_shim_are_rewritten_like_those_on_flax(name):
    of_flax = migrate(PROGRAMS[name].encode()).data.decode()
    on_shim = with_imports_of("rnncells.legacy", PROGRAMS[name]).encode()
    of_shim = migrate(on_shim).data.decode()
    for text in (" as linen", ".recurrent"):
        of_shim, of_flax = of_shim.replace(text, ""), of_flax.replace(text, "")
    of_flax = of_flax.replace("from flax import linen", "import flax.linen")
    assert of_shim == of_flax


def test_the_example_of_flax_gives_what_its_proposal_shows():
    """FLIP 3099 makes the carry by the cell, from the shape of the inputs."""
    before = PROGRAMS["proposal"]
    made, lstm = re.findall(r"^    (?:carry|lstm) = .*\n", before, re.MULTILINE)
    proposed = lstm + "    carry = lstm.initialize_carry(key1, input_shape=x.shape)\n"
    after = before.replace(made, "").replace(lstm, proposed)
    new = migrate(before.encode()).data.decode()
    assert_same(run("new", new), run("after", after))
