// The pages work without this. With it they are drawn again when something changed: a stream says that it did, and the page is asked for anew, so
// that nothing depends on an event that was missed while a machine slept or a server was started again.
"use strict";
(() => {
  const enter = document.getElementById("enter");
  if (enter && location.hash.length > 1) {
    enter.elements.secret.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    enter.submit();
    return;
  }

  const main = () => document.getElementById("main");
  const kinds = main().dataset.live;
  if (!kinds) return;
  const state = document.getElementById("live-state");
  const say = (text) => { state.textContent = text; state.hidden = !text; };

  let busy = false, again = false, typed = false;
  document.addEventListener("input", () => { typed = true; });

  async function redraw() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const r = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (r.status === 401) { location.reload(); return; }
      const next = new DOMParser().parseFromString(await r.text(), "text/html").getElementById("main");
      if (!next) return;
      say("");
      if (next.innerHTML === main().innerHTML) return;
      if (typed || main().contains(document.activeElement) && document.activeElement !== main()) {
        // Nothing is taken from under somebody's hands but a decision that cannot be made any more.
        const gone = main().querySelector(".decide") && !next.querySelector(".decide");
        if (!gone) { refresh(next); return; }
      }
      const open = [...main().querySelectorAll("details")].map((d) => d.open);
      const same = open.length === next.querySelectorAll("details").length;
      main().replaceWith(next);
      if (same) next.querySelectorAll("details").forEach((d, i) => { d.open = open[i]; });
      typed = false;
    } catch {
      say("Control does not answer. This page tries again by itself.");
    } finally {
      busy = false;
      if (again) { again = false; redraw(); }
    }
  }

  // refresh takes over what changed outside of forms: times and notes.
  function refresh(next) {
    for (const what of ["time.left", ".note"]) {
      const a = main().querySelectorAll(what), b = next.querySelectorAll(what);
      if (a.length === b.length) a.forEach((e, i) => e.replaceWith(b[i]));
    }
  }

  let source;
  function listen() {
    if (source) source.close();
    source = new EventSource("/events?kinds=" + encodeURIComponent(kinds));
    source.addEventListener("watching", () => { say(""); redraw(); });
    source.addEventListener("changed", redraw);
    source.onerror = () => {
      say("Control does not answer. This page tries again by itself.");
      if (source.readyState === EventSource.CLOSED) { source = null; setTimeout(listen, 2000); }
    };
  }
  listen();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { listen(); } });
  addEventListener("pagehide", () => { if (source) source.close(); });
  // A question that ends while it is read says so then.
  const until = Number(document.querySelector("[data-until]")?.dataset.until);
  if (until) setTimeout(redraw, Math.min(Math.max(until - Date.now(), 0) + 100, 2 ** 31 - 1));
  // Times go on without events.
  setInterval(() => { if (!document.hidden) redraw(); }, 15000);

  // Keys of the inbox: j and k move, Enter opens.
  document.addEventListener("keydown", (e) => {
    if (!(e.target instanceof Element) || e.target.closest("input, textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
    const rows = [...document.querySelectorAll(".queue a")];
    const at = rows.indexOf(document.activeElement);
    const to = e.key === "j" ? at + 1 : e.key === "k" ? Math.max(at - 1, 0) : -1;
    if (to >= 0 && rows[to]) { rows[to].focus(); e.preventDefault(); }
  });
})();
