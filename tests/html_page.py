"""Pages as tests read them: their elements, and what their policy lets run."""

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """The elements of a page as dicts: attributes, tag, text, ids around; fails where tags do not pair."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.stack, self.words = [], [], []
        self.feed(page)
        self.close()
        assert self.stack == []
        self.text = "".join(self.words)

    def handle_starttag(self, tag, attributes):
        element = {
            "tag": tag,
            "around": self.stack[-1] if self.stack else None,
            "from": len(self.words),
            **dict(attributes),
        }
        self.elements.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag):
        element = self.stack.pop()
        assert element["tag"] == tag
        element["to"] = len(self.words)

    def handle_data(self, data):
        self.words.append(data)

    def said(self, element):
        return "".join(self.words[element["from"] : element["to"]])

    def within(self, element):
        """The ids around an element, outermost first."""
        ids = []
        while element := element["around"]:
            ids += [element["id"]] if "id" in element else []
        return ids[::-1]

    def all(self, tag, kind=None):
        return [e for e in self.elements if tag == e["tag"] and (kind is None or kind in e.get("class", "").split())]

    def one(self, identity):
        (element,) = [e for e in self.elements if e.get("id") == identity]
        return element

    def nodes(self):
        """The ids of the tree's nodes by the path of the module."""
        names = [e for e in self.all("b") if "title" in e and e["around"].get("class") == "name"]
        return {e["title"]: self.within(e)[-1] for e in names}


def allowed(page):
    """The parts of a page that its policy names, by the hash of what stands in them; all else is forbidden."""
    (policy,) = [e["content"] for e in Page(page).all("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    found = set()
    for part in ("script", "style"):
        (inside,) = re.findall(f"<{part}>(.*?)</{part}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        found |= {part} if f"{part}-src 'sha256-{digest}'" in policy else set()
    return found
