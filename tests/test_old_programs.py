"""Old programs give the same results on the shim, and rewritten for new libraries."""

import re
import warnings
from functools import cache

import pytest
from levels import by_level
from programs import PROGRAMS, assert_same, run, with_imports_of
from rnncells_migrate.rewrite import marks, rewrite

from rnncells import legacy

pytestmark = pytest.mark.default

rewrite = cache(rewrite)
# The shim does not support a gate function as the first argument.
ON_SHIM = [name for name, source in PROGRAMS.items() if "SHIM = False" not in source]


# Slow programs whose forms others have, such as `time_loop` and `comments`.
LIKE_OTHERS = """
seq2seq training proposal other_lifts called_at_once x64 layers_in_setup aliases
bidirectional conv_lstm scanned_lstm_rl scan_class vmap_keys conv_lstm_old_name
features_from_carry qualified_names scanned_rl rnn_wrapper own_cell nested_classes
features_from_carry_call setup lambdas cell_as_attribute scan_alias_carry setup_list
""".split()
QUICK = [(name,) for name in PROGRAMS if name not in LIKE_OTHERS]


@pytest.mark.parametrize("name", by_level(PROGRAMS, QUICK))
def test_old_programs_give_the_same_results(name):
    """Equal parameter names, initial values (to the bit), and outputs."""
    source = PROGRAMS[name]
    expected = run(name, with_imports_of("old_linen", source))

    if name in ON_SHIM:
        on_shim = with_imports_of("rnncells.legacy", source)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert_same(run(name, on_shim), expected)
        assert_warnings(caught, f"{name}.py", on_shim.splitlines())
    new, _, _ = rewrite(source)
    if "LEFT = " in source:
        assert len(marks(new)) == int(source.partition("LEFT = ")[2].split()[0])
    else:
        assert not marks(new)
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


# The shim does not replace attributes of `flax` itself.
ON_SHIM_BY_NAME = [name for name in PROGRAMS if name != "qualified_names"]
LEFT = [name for name in ON_SHIM_BY_NAME if "LEFT = " in PROGRAMS[name]]


@pytest.mark.parametrize(
    "name", by_level([n for n in ON_SHIM_BY_NAME if n not in LEFT], 12)
)
def test_programs_on_the_shim_are_rewritten_like_those_on_flax(name):
    of_flax = rewrite(PROGRAMS[name])[0]
    of_shim, _, _ = rewrite(with_imports_of("rnncells.legacy", PROGRAMS[name]))
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
    new = rewrite(before)[0]
    assert_same(run("new", new), run("after", after))
