// The form that opens an inspection: on to its page.

document.addEventListener("answered", (event) => {
  if (event.target.id !== "open-inspection") return;
  event.preventDefault();
  location.assign(`${location.pathname}/${encodeURIComponent(event.detail.id)}`);
});
