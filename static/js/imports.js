// The Imports page: refuses an upload that is too large before it is sent, and says that one is being sent.
const form = document.querySelector("[data-upload]");

form?.addEventListener("submit", (event) => {
  const files = [...form.querySelector("input[type=file]").files];
  const most = Number(form.dataset.maxBytes);
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const error = form.querySelector("[data-upload-error]");
  error.hidden = size <= most;
  if (size > most) {
    event.preventDefault();
    const [given, allowed] = [size, most].map((bytes) => Math.ceil(bytes / 2 ** 20));
    error.textContent = `These files total ${given} MB. An upload can be at most ${allowed} MB.`;
    return;
  }
  const button = form.querySelector("button");
  button.disabled = true;
  button.textContent = "Uploading…";
});

// Back from the next page, the browser shows this one as it was left.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});
