// Preferences of this browser, in the cookie that the server reads.

/** Store a preference and apply it to this page. */
export function storePreference(name, value) {
  document.documentElement.dataset[name] = value;
  const cookie = document.cookie.split("; ").find((one) => one.startsWith("loopguard-preferences="));
  const stored = new URLSearchParams(cookie?.slice(cookie.indexOf("=") + 1) ?? "");
  stored.set(name, value);
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `loopguard-preferences=${stored}; path=/; max-age=31536000; samesite=lax${secure}`;
}
