// A link may bring the key behind #key=: a browser sends that to no server. The person signs in with it, or does not.

const brought = new URLSearchParams(location.hash.slice(1)).get("key");
if (brought !== null) {
  document.getElementById("key").value = brought;
  history.replaceState(null, "", location.pathname + location.search); // and keeps it in no history
  document.querySelector('form[method="post"] button').focus();
}
