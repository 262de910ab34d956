"""What is published: the same sources give the same bytes, and the files around a release agree with the package."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

import dtypeguard

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ON_CONDA = {"torch": "pytorch"}  # whose names differ from PyPI's


def built(source, folder, seed):
    """The files that a build gives, by name; builds differ in the folder, the order of sets and the permissions."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True, umask=int(seed))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    return folder, built(ROOT, folder, "18")


def test_the_sdist_builds_itself_and_the_wheel_byte_for_byte(release, tmp_path):
    folder, first = release
    assert sorted(first) == [f"dtypeguard-{dtypeguard.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path, filter="data")
    second = built(tmp_path / f"dtypeguard-{dtypeguard.__version__}", tmp_path / "again", "63")
    digests = [{name: hashlib.sha256(data).hexdigest() for name, data in built.items()} for built in (first, second)]
    assert digests[0] == digests[1]


def test_the_recipe_is_one_and_needs_what_the_package_needs(release):
    rattler = pytest.importorskip("rattler_build")
    folder, _ = release
    subprocess.run([sys.executable, ROOT / "conda" / "feedstock.py", folder], check=True)
    for file in (ROOT / "conda" / "recipe.yaml", folder / "recipe.yaml"):
        (variant,) = rattler.Stage0Recipe.from_file(file).render()
        recipe = variant.recipe.to_dict()
        assert recipe["package"] == {"name": "dtypeguard", "version": dtypeguard.__version__}
        needs = {re.sub(r"^\w+", lambda name: ON_CONDA.get(name[0], name[0]), one) for one in PROJECT["dependencies"]}
        python = f"python{PROJECT['requires-python']}"
        assert {one.replace(" ", "") for one in recipe["requirements"]["run"]} == {python, *needs}
    sdist = next(folder.glob("*.tar.gz"))
    assert recipe["source"][0]["sha256"] == hashlib.sha256(sdist.read_bytes()).hexdigest()


def test_the_page_has_every_extra_and_what_it_installs():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "howto" / "install.md").read_text(), re.MULTILINE)
    extras = {extra: " ".join(needs) for extra, needs in PROJECT["optional-dependencies"].items()}
    assert [extra for extra, _ in rows] == [*extras]
    assert all(re.match(r"\w+", extras[extra])[0] == what for extra, what in rows[:-1])


def test_the_citation_has_the_package_s_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dtypeguard.__version__


def test_a_release_runs_pinned_actions_and_only_one_job_may_publish():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())["jobs"]
    used = {name: [step["uses"] for step in job["steps"] if "uses" in step] for name, job in jobs.items()}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action) for actions in used.values() for action in actions)
    assert [name for name, actions in used.items() if any("pypi-publish" in one for one in actions)] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in jobs["publish"]["steps"])  # nothing of the repository runs there
