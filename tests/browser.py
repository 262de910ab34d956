"""Pages in a real browser, as their readers meet them."""

import contextlib
import json
import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and "DTYPEGUARD_NEEDS_BROWSER" not in os.environ,
    reason="no headless browser: apt-get install chromium chromium-driver",
)
THEMES = ("light", "dark")
WIDTHS = {390: 844, 1280: 900}
GROUNDS = {"light": "#fff", "dark": "#131416"}

# Contrast as WCAG 2 has it, between the colour of an element's text and what lies behind it. Colours go over a canvas,
# because a computed style keeps oklch() as it is.
CONTRAST = """
const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  pixel.clearRect(0, 0, 1, 1); pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
  return [...pixel.getImageData(0, 0, 1, 1).data];
};
const luminance = (colour) => {
  const light = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgba(colour).map((v) => light(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (rgba(colour)[3] === 255) return colour;
  }
  return "white";
};
const worst = {};
for (const element of document.querySelectorAll(arguments[0])) {
  const [a, b] = [getComputedStyle(element).color, behind(element)].map(luminance);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const name = element.className || element.tagName;
  worst[name] = Math.min(worst[name] ?? 21, ratio);
}
return worst;
"""
SHOWN = """
return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.innerText);
"""
# What leaves the page on the right; what stands in an element of the given selector may, as that scrolls.
OVERFLOW = """
const scrolls = arguments[0] ?? ":not(*)";
const wide = [...document.querySelectorAll("body *")].filter((e) =>
  e.checkVisibility() && !e.classList.contains("unseen") && !e.parentElement.closest(scrolls) &&
  e.getBoundingClientRect().right > innerWidth + 1);
return [document.scrollingElement.scrollWidth - innerWidth, wide.map((e) => `${e.tagName}.${e.className}`)];
"""
# Texts of pictures that leave them, that are small, and those that meet.
UNCLEAR = """
const found = [...document.querySelectorAll("svg.picture text")].filter((e) => e.checkVisibility());
const texts = found.map((e) => [e.textContent, e.getBoundingClientRect(), e]);
const bad = [];
const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
for (const [said, box, e] of texts) {
  const own = e.closest("svg.picture").getBoundingClientRect();
  if (box.left < own.left - 1 || box.right > own.right + 1 || box.top < own.top - 1 || box.bottom > own.bottom + 1)
    bad.push(`${said} leaves`);
  if (parseFloat(getComputedStyle(e).fontSize) < 11) bad.push(`${said} is small`);
  bad.push(...texts.filter(([, its, o]) => o !== e && meet(box, its)).map(([other]) => `${said} meets ${other}`));
}
return bad;
"""
# As CONTRAST, for pictures: between a text's fill and that of the rectangle below it, or the ground.
FAINT = """
const canvas = document.createElementNS("http://www.w3.org/1999/xhtml", "canvas");
const pixel = canvas.getContext("2d", { willReadFrequently: true });
const light = (colour) => {
  pixel.fillStyle = "#fff"; pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = arguments[0];
return [...document.querySelectorAll("svg.picture text")].map((text) => {
  const t = text.getBoundingClientRect(), x = t.x + t.width / 2, y = t.y + t.height / 2;
  const under = [...text.closest("svg.picture").querySelectorAll("rect")].filter((e) => {
    const b = e.getBoundingClientRect();
    return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom;
  }).at(-1);
  const [a, b] = [getComputedStyle(text).fill, under ? getComputedStyle(under).fill : ground].map(light);
  return [text.textContent, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
}).filter(([, ratio]) => ratio < 4.5);
"""


@contextlib.contextmanager
def chromium():
    """A headless browser that tells what its console and its network have seen."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    browser.set_script_timeout(30)
    try:
        yield browser
    finally:
        browser.quit()


class Browser:
    """A page as its reader meets it."""

    def __init__(self, driver, pages):
        self.driver, self.pages = driver, pages

    def open(self, name, theme="light", width=1280, hash=""):
        self.emulate("Media", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.emulate(
            "DeviceMetricsOverride", width=width, height=WIDTHS[width], deviceScaleFactor=1, mobile=width < 500
        )
        self.driver.get("about:blank")
        self.driver.get(f"{(self.pages / name).as_uri()}.html{hash}")
        return self

    def reload(self):
        """Load the page again, and wait for the new one: a driver may answer while the old one still stands."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.ask("window.old = true")
        self.driver.refresh()
        WebDriverWait(self.driver, 10).until(
            lambda _: self.ask("return !window.old && document.readyState === 'complete'")
        )

    def emulate(self, what, **options):
        name = "setEmulatedMedia" if what == "Media" else f"set{what}"
        self.driver.execute_cdp_cmd(f"Emulation.{name}", options)

    def ask(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def shown(self, selector):
        """The texts of what can be seen of a selector."""
        return self.ask(SHOWN, selector)

    def click(self, selector):
        element = self.one(selector)
        self.ask("arguments[0].scrollIntoView({ block: 'center' })", element)
        element.click()

    def noise(self):
        """What the console says."""
        return [entry for entry in self.driver.get_log("browser") if entry["level"] != "DEBUG"]

    def asked(self):
        """The addresses that were asked since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
