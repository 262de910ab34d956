"""The picture of an audit: dtypes from module to module."""

import itertools
import xml.dom.minidom

import pytest
import torch
from torch import nn

import dtypeguard


class Norm(nn.Module):
    def forward(self, x):
        return (x.float() / x.float().norm()).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = Norm(), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(8, 4), nn.Sequential(Block(), Block()), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)).float())


@pytest.fixture
def report():
    net = Net().bfloat16()
    net.head.float()
    with dtypeguard.audit(net) as report:
        net(torch.tensor([[1, 2, 3]]))
    return report


def texts(svg):
    found = xml.dom.minidom.parseString(svg).getElementsByTagName("text")
    return [text.firstChild.data for text in found]


def test_each_kind_of_module_is_a_row_that_says_its_dtypes(report):
    said = texts(report.to_svg())
    rows = dict(itertools.pairwise(said))
    assert {name: rows[name] for name in ("Net", "embed", "blocks", "blocks.* x 2", "norm x 2", "fc x 2", "head")} == {
        "Net": "int64 → float32",
        "embed": "int64 → bfloat16",
        "blocks": "bfloat16",
        "blocks.* x 2": "bfloat16",
        "norm x 2": "bfloat16, in float32",
        "fc x 2": "bfloat16",
        "head": "float32",
    }


def test_a_bar_tells_bytes_and_casts_when_pointed_at(report):
    root = xml.dom.minidom.parseString(report.to_svg()).documentElement
    told = [rect.getElementsByTagName("title") for rect in root.getElementsByTagName("rect")]
    (place,) = {cast.site.partition(", in ")[0] for cast in report.casts if cast.module_path == "Net"}
    assert [title[0].firstChild.data for title in told if title][:2] == [
        f"Net: int64 → float32, 24 B, explicit bfloat16 → float32 at {place}",
        "Net.embed: int64 → bfloat16, 24 B",
    ]


def test_the_page_has_the_picture_and_all_casts(report):
    page = report.to_html()
    assert 'aria-label="dtypes from module to module"' in page
    assert "All casts, by bytes" in page


def test_without_modules_there_is_an_empty_picture():
    with dtypeguard.audit() as report:
        torch.ones(3).sum()
    assert texts(report.to_svg())[0] == "dtypes from module to module"
    assert "<svg" not in report.to_html()
