"""Whether secrets are the stored ones: who may ask, what is answered, and that it is written down without them."""

SECRET = "s3cret-" + "x" * 32
FAR = {"name": "far", "url": "https://far.example/mcp", "headers": {"X-Key": "k3y", "X-Other": "o"}}
IDP = {"issuer": "https://idp", "algorithms": ["HS256"], "secret": SECRET}


async def test_values_of_env_are_compared_and_nothing_is_changed(rig):
    made = {"name": "b", "command": "cat", "env": {"A": "1", "B": ""}}
    await rig.ask("POST", "/api/v1/tenants/acme/backends", made)
    before = await rig.ask("GET", "/api/v1/tenants/acme/backends/b")
    asked = {"env": {"A": "1", "B": "x", "C": ""}, "headers": {"X-A": "1"}}
    answer = await rig.ask("POST", "/api/v1/tenants/acme/backends/b:compare", asked)
    assert answer.json() == {"different": ["env.B", "env.C", "headers.X-A"]}
    assert (await rig.ask("POST", "/api/v1/tenants/acme/backends/b:compare", {})).json() == {"different": []}
    assert (await rig.ask("GET", "/api/v1/tenants/acme/backends/b")).headers["ETag"] == before.headers["ETag"]


async def test_headers_are_compared_for_the_host_that_they_were_given_for(rig):
    key = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("POST", "/api/v1/tenants/acme/backends", FAR, key=key)).is_success
    asked = {"headers": {"X-Key": "k3y", "X-Other": "another"}}
    answer = await rig.ask("POST", "/api/v1/tenants/acme/backends/far:compare", asked, key=key)
    assert answer.json() == {"different": ["headers.X-Other"]}


async def test_only_who_may_replace_a_secret_may_ask(rig):
    key = await rig.key("acme", "tenant:admin")
    refused = await rig.ask("POST", "/api/v1/tenants/acme/backends/echo:compare", {"env": {"A": "1"}}, key=key)
    assert (refused.status_code, refused.json()["reason"]) == (403, "insufficient_scope")
    wide = {**IDP, "max_scopes": ["platform:admin"]}
    issuer = (await rig.ask("POST", "/api/v1/issuers", wide)).json()["id"]
    small = await rig.key("default", "tenant:admin")
    refused = await rig.ask("POST", f"/api/v1/issuers/{issuer}:compare", {"secret": SECRET}, key=small)
    assert refused.status_code == 403


async def test_the_secret_of_an_issuer(rig):
    issuer = (await rig.ask("POST", "/api/v1/tenants/acme/issuers", IDP)).json()["id"]
    path = f"/api/v1/tenants/acme/issuers/{issuer}:compare"
    for secret, different in ((SECRET, []), (SECRET + "x", ["secret"]), ("", ["secret"])):
        assert (await rig.ask("POST", path, {"secret": secret})).json() == {"different": different}
    of_keys = {"issuer": "https://keys", "algorithms": ["RS256"], "jwks_url": "https://keys.example/jwks"}
    other = (await rig.ask("POST", "/api/v1/tenants/acme/issuers", of_keys)).json()["id"]
    path = f"/api/v1/tenants/acme/issuers/{other}:compare"
    assert (await rig.ask("POST", path, {"secret": SECRET})).json() == {"different": ["secret"]}


async def test_each_question_is_in_the_audit_trail_without_values(rig):
    await rig.ask("POST", "/api/v1/tenants/acme/backends", FAR)
    await rig.ask("POST", "/api/v1/tenants/acme/backends/far:compare", {"headers": {"X-Key": SECRET}})
    act = (await rig.trail())[-1]
    assert (act.action, act.target, act.detail) == ("backend.compare", "backends/far", "headers.X-Key")
    assert SECRET not in repr(act)


async def test_the_client_secret_of_an_issuer(rig):
    body = {
        "issuer": "https://idp.example", "algorithms": ["RS256"], "discovery_url": "https://idp.example/discovery",
        "sign_in": {"client_id": "gw", "client_secret": SECRET},
    }  # fmt: skip
    issuer = (await rig.ask("POST", "/api/v1/tenants/acme/issuers", body)).json()["id"]
    path, name = f"/api/v1/tenants/acme/issuers/{issuer}", "sign_in.client_secret"
    for secret, different in ((SECRET, []), (SECRET + "x", [name]), ("", [name]), (None, [])):
        answer = await rig.ask("POST", f"{path}:compare", {"sign_in": {"client_secret": secret}})
        assert answer.json() == {"different": different}
    both = {"secret": SECRET, "sign_in": {"client_secret": SECRET}}
    assert (await rig.ask("POST", f"{path}:compare", both)).json() == {"different": ["secret"]}
    await rig.ask("PATCH", path, {"sign_in": {"client_secret": None}})
    assert (await rig.ask("POST", f"{path}:compare", {"sign_in": both["sign_in"]})).json() == {"different": [name]}
    assert SECRET not in repr(await rig.trail())
