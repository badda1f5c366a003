"""What the README says is true: its examples run, its commands are those of CI."""

import re
import tomllib
from pathlib import Path

import rnncells

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_python_examples_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 12
    namespace = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def test_first_command_installs_the_packages_of_the_examples():
    extra = re.search(r"'\.\[(\w+)\]' && python -m experiments run", README)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # `serialize` in the examples needs flatbuffers.
    assert "rnncells[export]" in project["optional-dependencies"][extra]


def test_first_example_is_short():
    first = re.search(r"class Tagger.*?(?=```)", README, re.DOTALL)[0]
    assert len(first.strip().splitlines()) <= 15


def test_table_of_cells_is_complete_and_its_files_exist():
    cells = {name for name in dir(rnncells) if name.endswith("Cell")}
    assert cells == set(re.findall(r"`(\w+Cell)`(?=[^\n]*\.py\))", README))
    for path in re.findall(r"\]\((rnncells/[^)]*)\)", README):
        assert (ROOT / path).is_file()


def test_layout_lists_existing_paths():
    layout = re.search(r"```\n(rnncells/public.py.*?)```", README, re.DOTALL)[1]
    for line in layout.splitlines():
        assert (ROOT / line.split()[0]).exists(), line


def test_wheel_contains_only_the_library(tmp_path):
    import zipfile

    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"rnncells", f"rnncells-{rnncells.__version__}.dist-info"}
    assert "rnncells/py.typed" in names
