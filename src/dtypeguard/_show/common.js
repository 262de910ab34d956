"use strict";
document.documentElement.classList.add("js");

(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = (value) => {
    try {  // a page from a file may have no storage
      if (value === undefined) return localStorage.getItem("dtypeguard-theme");
      if (value) localStorage.setItem("dtypeguard-theme", value); else localStorage.removeItem("dtypeguard-theme");
    } catch { return null; }
  };
  const system = () => dark.matches ? "dark" : "light";
  const now = () => root.dataset.theme || system();
  const theme = (value) => {
    if (value && value !== system()) root.dataset.theme = value; else delete root.dataset.theme;
  };
  theme(stored());

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = now() === "dark" ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      theme(now() === "dark" ? "light" : "dark");
      stored(root.dataset.theme || "");
      label();
    });
    dark.addEventListener("change", () => { theme(root.dataset.theme); label(); });
    label();
  });
})();
