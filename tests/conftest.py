"""Every test starts with no mode set, no repair remembered and nothing compiled; which tests are quick."""

import sys
from collections import Counter

import hypothesis
import pytest
import tiers
import torch
from hypothesis.internal.conjecture import providers

import dtypeguard

# Hypothesis draws constants that it finds in the project's loaded modules: what a test draws would depend on the tests
# that ran before it in the process.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = providers.Constants
hypothesis.settings.register_profile("all", max_examples=1000)  # ten times the examples: `make test-all`
torch.set_num_threads(1)  # the tensors are tiny, and threads of several test processes would wait for each other


# Files whose tests take long, each by processes of its own: the tests go to whoever is free.
APART = {f"tests/{name}.py" for name in ("test_fix_command", "test_command", "test_manifest_doors", "test_memory")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return nodeid if file in APART else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the parametrizations of a test with `thin(n)`, one of each n is quick and the others are slow.

    The first is quick, and in each block of n it is the next one: a parameter that goes round in n is met in all its
    values.
    """
    met = Counter()
    for item in items:
        thin = item.get_closest_marker("thin")
        if thin is None or item.get_closest_marker("slow"):
            continue
        (n,), test = thin.args, (item.parent, item.originalname)
        block, place = divmod(met[test], n)
        if place != block % n:
            item.add_marker("slow")
        met[test] += 1
    tiers.mark(items)


@pytest.fixture(autouse=True)
def _fresh():
    dtypeguard.set_mode(None)
    dtypeguard.reset_casts()
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main  # the command leaves its program there; spawned processes would run it again
    dtypeguard.set_mode(None)
    dtypeguard.reset_casts()
    if getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None):
        torch.compiler.reset()  # a watch looks at other steps in a process that compiles


@pytest.fixture
def strict():
    """The rest of the test runs in strict mode."""
    dtypeguard.set_mode("strict")
