// Landmarks and names that the administration's theme and Django's widgets lack.
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
