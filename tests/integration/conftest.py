"""Real libraries, tiny models: nothing is downloaded, and every run draws the same weights."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
