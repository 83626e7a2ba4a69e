// Landmarks and names that the administration's theme and Django's widgets lack, and its scripts without eval.
document.addEventListener("DOMContentLoaded", () => document.getElementById("main")?.setAttribute("role", "main"));
addEventListener("load", () => {
  // The theme gives each scrolling part the same name.
  const parts = document.querySelectorAll(".simplebar-content-wrapper[role=region]");
  for (const [place, part] of [...parts].entries()) part.setAttribute("aria-label", `Scrollable content ${place + 1}`);
  // Django's two-column lists, which are made at the same event, name an icon that has no role.
  setTimeout(() => {
    for (const icon of document.querySelectorAll(".search-label-icon[aria-label]")) icon.setAttribute("role", "img");
  });
});

// The build of Alpine that needs no eval knows neither global functions nor statements. These are the theme's own
// functions by name, and the few attributes with statements as methods.
const SIDEBAR = "sidebarDesktopOpen";
const WRITTEN_AS_METHODS = [
  ["[x-on\\:keydown\\.enter\\.prevent^='if (']", "x-on:keydown.enter.prevent", "openUnlessModified($event)"],
  ["form[x-bind\\:action]", "x-bind:action", "addressOfForm()"],
  ["a[x-on\\:click\\.prevent^='window.location']", "x-on:click.prevent", "openInSameTab($el)"],
  [`[x-on\\:click^="${SIDEBAR} ="]`, "x-on:click", `${SIDEBAR} = !${SIDEBAR}`],
];

document.addEventListener("alpine:init", () => {
  const { Alpine, theme, searchForm, searchCommand, getCurrentTab } = globalThis;
  const firstTab = /activeTab: '([^']*)'/.exec(document.body.getAttribute("x-data") ?? "")?.[1];
  Alpine.data("theme", theme);
  Alpine.data("searchForm", searchForm);
  Alpine.data("searchCommand", () => ({
    ...searchCommand(),
    openUnlessModified(event) {
      if (!event.metaKey && !event.ctrlKey) this.selectItem(false, false);
    },
  }));
  Alpine.data("administration", () => ({
    activeTab: firstTab === undefined ? "" : getCurrentTab() || firstTab,
    sidebarMobileOpen: false,
    [SIDEBAR]: (localStorage.getItem(SIDEBAR) ?? "1") === "1",
    addressOfForm() {
      const hash = this.activeTab && this.activeTab !== "general" ? `#${this.activeTab}` : "";
      return location.pathname + location.search + hash;
    },
    openInSameTab(anchor) {
      location.href = anchor.href + location.hash;
    },
    init() {
      this.$watch(SIDEBAR, (isOpen) => localStorage.setItem(SIDEBAR, isOpen ? "1" : "0"));
    },
  }));
  document.body.setAttribute("x-data", "administration");
  document.body.removeAttribute("x-init");
  for (const [selector, attribute, expression] of WRITTEN_AS_METHODS)
    for (const element of document.querySelectorAll(selector)) element.setAttribute(attribute, expression);
});
