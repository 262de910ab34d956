(() => {
  // A link to a row that is folded away opens what is around it, and the row.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", reveal);
  addEventListener("DOMContentLoaded", () => { if (location.hash) reveal(); });
})();
