(() => {
  document.addEventListener("DOMContentLoaded", () => {
    const one = (id) => document.getElementById(id);
    const all = (query, inside = document) => [...inside.querySelectorAll(query)];

    for (const button of all("[data-copy]")) {
      const said = button.textContent;
      button.addEventListener("click", async () => {
        const diff = one(button.dataset.copy);
        try {
          await navigator.clipboard.writeText(diff.textContent);
          button.textContent = "Copied";
        } catch {  // a page from a file may not write there: it is selected
          getSelection().selectAllChildren(diff);
          button.textContent = "Selected: copy it";
        }
        setTimeout(() => { button.textContent = said; }, 2000);
      });
    }

    // What can be found: an element with the text that belongs to it alone, short and full names of dtypes included.
    const text = (...parts) => parts.map((part) =>
      [part.textContent, ...all("[title]", part).map((e) => e.title)].join(" ").toLowerCase()).join(" ");
    const item = (element, ...parts) => ({ element, parts, shown: true });
    const findings = all(".finding").map((e) => item(e, e));
    const casts = all("#casts tbody tr").map((e) => item(e, e));
    const modules = all(".module").map((e) => item(e, ...[...e.children].filter((c) => !c.matches(".module"))));
    const place = new Map(modules.map((m, i) => [m.element, i]));
    for (const m of modules) {
      m.parent = place.get(m.element.parentElement) ?? -1;
      m.counted = m.element.id !== "outside";
    }
    const noun = all(".cause").length ? "place" : "finding";  // of one finding there may be many
    const sections = [
      ["findings", findings, noun], ["modules", modules.filter((m) => m.counted), "module"], ["casts", casts, "cast"],
    ];

    const search = one("search"), rule = one("rule"), boxes = all("[name=severity]");
    const count = (n) => n.toLocaleString("en");
    const show = (it, wanted) => {
      if (it.shown !== wanted) { it.element.hidden = !wanted; it.shown = wanted; }
      return wanted;
    };
    const read = (it) => it.text ??= text(...it.parts);
    const matches = (it, words) => words.every((word) => read(it).includes(word));
    // The first key should not wait for the texts of a big report.
    (window.requestIdleCallback ?? setTimeout)(() => { sections.forEach(([, items]) => items.forEach(read)); });

    let opened = null;  // the modules that were open before the search
    const filterModules = (words) => {
      if (words.length && !opened) opened = modules.map((m) => m.element.open);
      const hits = modules.map((m) => matches(m, words)), narrowed = !hits.every(Boolean);
      const within = new Array(modules.length).fill(false);
      const total = hits.filter((hit, i) => hit && modules[i].counted).length;
      for (let i = modules.length - 1; i >= 0; i--) {  // children come after their parents
        const m = modules[i];
        show(m, hits[i] || within[i]);
        if ((hits[i] || within[i]) && m.parent >= 0) within[m.parent] = true;
        const hit = narrowed && hits[i], around = narrowed && !hits[i];
        if (m.hit !== hit) m.element.classList.toggle("hit", m.hit = hit);
        if (m.around !== around) m.element.classList.toggle("around", m.around = around);
      }
      if (opened) {
        const some = total <= 200, few = total <= 20;
        modules.forEach((m, i) => {
          const open = opened[i] || (words.length > 0 && ((some && within[i]) || (few && hits[i])));
          if (m.element.open !== open) m.element.open = open;
        });
      }
      if (!words.length) opened = null;
      return total;
    };

    // A browser takes long to lay out thousands of rows, and nobody reads them.
    let most = 200;
    const more = one("more");
    const filterCasts = (words) => {
      let total = 0;
      for (const it of casts) show(it, matches(it, words) && total++ < most);
      if (more) {
        more.hidden = total <= most;
        more.textContent = `Show ${count(total - most)} more`;
      }
      return total;
    };
    more?.addEventListener("click", () => { most = Infinity; filter(); });

    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const severities = new Set(boxes.filter((b) => b.checked).map((b) => b.value));
      const wanted = (it) => (!boxes.length || severities.has(it.element.dataset.severity)) &&
        (!rule?.value || it.element.dataset.rule === rule.value) && matches(it, words);
      const totals = {
        findings: findings.filter((it) => show(it, wanted(it))).length,
        casts: filterCasts(words),
        modules: filterModules(words),
      };
      for (const group of all(".cause")) group.hidden = !all(".finding", group).some((e) => !e.hidden);
      for (const [name, items] of sections) {
        const nothing = document.querySelector(`#${name} > .nothing`);
        if (nothing) nothing.hidden = totals[name] > 0;
      }
      one("shown").replaceChildren(...sections.filter(([, items]) => items.length).map(([name, items, noun]) => {
        const of = totals[name] === items.length ? "" : `${count(totals[name])} of `;
        const link = document.createElement("a");
        link.href = `#${name}`;
        link.textContent = `${of}${count(items.length)} ${noun}${items.length === 1 ? "" : "s"}`;
        return link;
      }));
    };
    search.addEventListener("input", filter);
    rule?.addEventListener("change", filter);
    for (const box of boxes) box.addEventListener("change", filter);
    filter();

    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches("input, select, textarea");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); search.focus(); }
      if (event.key === "Escape" && event.target === search && search.value) { search.value = ""; filter(); }
    });

    one("expand")?.addEventListener("click", () => { for (const m of modules) m.element.open = true; });
    one("collapse")?.addEventListener("click", () => { for (const m of modules) m.element.open = false; });

    // A link to something that is folded or filtered away shows it.
    const reveal = () => {
      const target = one(decodeURIComponent(location.hash.slice(1)));
      if (!target) return;
      if (target.closest("[hidden]") || target.matches(".around")) {
        search.value = "";
        if (rule) rule.value = "";
        for (const box of boxes) box.checked = true;
        filter();
      }
      for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
      target.scrollIntoView();
    };
    addEventListener("hashchange", reveal);
    if (location.hash) reveal();

    const body = document.querySelector("#casts tbody");
    const natural = new Intl.Collator("en", { numeric: true });
    const site = (row) => row.querySelector(".site")?.textContent ?? "";
    const orders = {
      bytes: (a, b) => b.dataset.bytes - a.dataset.bytes,
      count: (a, b) => b.dataset.count - a.dataset.count,
      site: (a, b) => natural.compare(site(a), site(b)),
    };
    const heads = all("#casts th[data-key]");
    for (const head of heads) {
      const key = head.dataset.key, down = key !== "site";
      const press = document.createElement("button");
      press.type = "button";
      press.append(...head.childNodes);
      head.append(press);
      press.addEventListener("click", () => {
        const was = head.getAttribute("aria-sort");
        const first = down ? "descending" : "ascending", second = down ? "ascending" : "descending";
        const order = was === first ? second : first;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
        const sign = order === first ? 1 : -1;
        casts.sort((a, b) => sign * orders[key](a.element, b.element));
        body.append(...casts.map((it) => it.element));
        filter();
      });
    }
  });
})();
