// Shows notifications of held calls where browsers allow them to service workers only (Chrome on Android). Its scope is
// this folder, so it controls no page: it fetches nothing and stores nothing.
self.addEventListener("install", () => self.skipWaiting());

self.addEventListener("notificationclick", (event) => {
  const { notification } = event;
  const { page, project } = notification.data;
  notification.close();
  const open = async () => {
    const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
    const shown = pages.find(({ url }) => url === page) ?? pages.find(({ url }) => url.startsWith(project));
    if (!shown) return self.clients.openWindow(page);
    shown.postMessage({ held: notification.tag });
    return shown.focus();
  };
  event.waitUntil(open());
});
