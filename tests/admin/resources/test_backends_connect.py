"""…/backends with `connect`: certificates are shown, keys are not, and neither leads a secret elsewhere."""

import pytest

from app.auth.sealing import Sealer
from app.backends.upstreams.upstream_secrets import SecretOpener
from tests.certificates import authority, issued, key_pem

PATH = "/api/v1/tenants/acme/backends"
ROOT, OTHER = authority("Root of Acme"), authority("another root")
OURS = issued(ROOT, "gateway.acme.example")
CONNECT = {"ca": ROOT.pem, "certificate": OURS.pem + ROOT.pem, "key": OURS.key}
FAR = {"name": "far", "url": "https://far.example/mcp", "connect": CONNECT}
OPENER = SecretOpener(Sealer(b"s" * 32))


async def add(rig, status=201, key=None, **change):
    answer = await rig.ask("POST", PATH, {**FAR, **change}, key=key)
    return shown(answer, status)


async def patch(rig, connect, status=200, key=None, **more):
    return shown(await rig.ask("PATCH", PATH + "/far", {"connect": connect, **more}, key=key), status)


def shown(answer, status):
    assert answer.status_code == status, answer.text
    assert not any(line in answer.text for line in OURS.key.splitlines()[1:-1])
    return answer.json()


async def stored(rig):
    return OPENER(await rig.admin.backends.get("acme", "far")).connect


async def test_certificates_are_shown_and_keys_are_not(rig):
    made = await add(rig)
    assert made["connect"] == {**CONNECT, "key": "***", "proxy": None, "proxy_auth": None}
    assert [(each["member"], each["subject"]) for each in made["certificates"]] == [
        ("ca", "CN=Root of Acme"), ("certificate", "CN=gateway.acme.example"), ("certificate", "CN=Root of Acme"),
    ]  # fmt: skip
    assert set(made["certificates"][0]) == {"member", "subject", "expires_at", "sha256"}
    assert made["notes"] == []
    spec = await rig.admin.backends.get("acme", "far")
    assert not any(line in f"{spec}{spec.connect.key}" for line in OURS.key.splitlines()[1:-1])
    assert (await stored(rig)).key == OURS.key
    shown(await rig.ask("GET", PATH), 200)
    shown(await rig.ask("GET", PATH + "/far"), 200)
    assert "PRIVATE KEY" not in repr(await rig.trail("acme"))


async def test_without_it_nothing_is_shown(rig):
    made = await add(rig, connect={})
    assert (set(made["connect"].values()), made["certificates"]) == ({None}, [])


async def test_what_expires_soon_has_a_note(rig):
    soon, late = issued(ROOT, "soon.example", days=4), issued(ROOT, "late.example", days=-1)
    (note,) = (await add(rig, connect={"certificate": soon.pem, "key": soon.key}))["notes"]
    assert "`connect.certificate`: the certificate of CN=soon.example expires at" in note
    (note,) = (await patch(rig, {"certificate": late.pem, "key": late.key}))["notes"]
    assert "has expired at" in note
    assert (await rig.ask("GET", PATH + "/far")).json()["notes"] == [note]


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"ca": "no PEM"}, "#/connect/ca", "has no certificate in PEM form"),
        ({"ca": "***"}, "#/connect/ca", "no certificate"),
        ({"certificate": OURS.pem + OURS.key}, "#/connect/certificate", "has a private key in it"),
        ({"key": OURS.pem}, "#/connect/key", "has no private key in PEM form"),
        ({"key": key_pem(OURS.private, b"pass")}, "#/connect/key", "is encrypted"),
        ({"key": OTHER.key}, "#/connect/key", "is not the key of the certificate"),
        ({"certificate": ROOT.pem + OURS.pem}, "#/connect/key", "certificate 2 of 2"),
        ({"key": None}, "", "go together"),
        ({"certificate": None}, "", "go together"),
        ({"key": "***"}, "", "stands for a `connect` value that is already set"),
        ({"ca": ROOT.pem * 200}, "#/connect/ca", "65536 characters"),
        ({"passphrase": "x"}, "#/connect/passphrase", ""),
        ({"proxy": "http://me:pass@proxy.example:3128"}, "#/connect/proxy", "give name and password as"),
        ({"proxy": "socks5://proxy.example"}, "#/connect/proxy", "must begin with"),
        ({"proxy": "https://proxy.example/path"}, "#/connect/proxy", "has no path"),
        ({"proxy": "https://proxy.example", "proxy_auth": "me"}, "#/connect/proxy_auth", "NAME:PASSWORD"),
        ({"proxy_auth": "me:pass"}, "", "goes with `connect.proxy`"),
        ({"proxy_is_granted": True}, "#/connect/proxy_is_granted", ""),
    ],
)
async def test_what_cannot_be_used_is_refused_in_words(untouched, change, place, words):
    problem = await add(untouched, 422, connect={**CONNECT, **change})
    assert words in str(problem), problem
    assert place in str(problem), problem
    assert untouched.heard == []


async def test_it_goes_with_a_url(untouched):
    body = {"name": "x", "command": "cat", "connect": {"ca": ROOT.pem}}
    assert (await untouched.ask("POST", PATH, body)).status_code == 422


async def test_a_key_stays_until_another_is_given(rig):
    await add(rig)
    await patch(rig, {"key": "***"})
    await patch(rig, {"certificate": OURS.pem})
    assert await stored(rig) == (await stored(rig)).__class__(ca=ROOT.pem, certificate=OURS.pem, key=OURS.key)
    new = issued(ROOT, "gateway.acme.example")
    assert "is not the key of" in str(await patch(rig, {"certificate": new.pem}, 422))
    assert "is not the key of" in str(await patch(rig, {"key": new.key}, 422))
    await patch(rig, {"certificate": new.pem, "key": new.key})
    (change, *_) = await rig.trail("acme")
    assert {"connect.key", "connect.certificate", "certificates"} <= {each.member for each in change.changes}
    made = await patch(rig, {"certificate": None, "key": None})
    assert made["connect"] == {**dict.fromkeys(made["connect"]), "ca": ROOT.pem}
    assert (await patch(rig, None))["certificates"] == []


async def test_secrets_go_to_no_other_host_and_by_no_other_authority(rig):
    """Whoever could have another server believed to be this one could read them there."""
    token = {"Authorization": "Bearer x"}
    await add(rig, headers=token)
    key = await rig.key("acme", "tenant:admin")
    for change in ({"ca": OTHER.pem}, {"ca": None}):
        assert "was given for another" in (await patch(rig, change, 422, key=key))["detail"]
        assert "was given for another" in (await patch(rig, {**change, "key": OURS.key}, 422, key=key))["detail"]
    assert "`connect.key`" in (await patch(rig, {}, 422, key=key, url="https://evil.example/", headers=token))["detail"]
    await patch(rig, {"ca": OTHER.pem, "key": OURS.key}, key=key, headers=token)
    assert (await stored(rig)).ca == OTHER.pem


async def test_who_may(rig):
    key = await rig.key("acme", "tenant:admin")
    await add(rig, key=key)
    await patch(rig, {"certificate": None, "key": None}, key=key)
    assert (await rig.ask("PATCH", PATH + "/echo", {"connect": {"ca": ROOT.pem}}, key=key)).status_code == 403


async def test_a_key_is_compared(rig):
    await add(rig)
    for key, different in ((OURS.key, []), (OURS.pem + OURS.key, []), (OTHER.key, ["connect.key"])):
        answer = await rig.ask("POST", PATH + "/far:compare", {"connect": {"key": key}})
        assert answer.json() == {"different": different}
    await add(rig, name="other", connect={})
    answer = await rig.ask("POST", PATH + "/other:compare", {"connect": {"key": OURS.key}})
    assert answer.json() == {"different": ["connect.key"]}
    assert (await rig.trail())[-1].detail == "connect.key"


# --- proxies

PROXIED = {"proxy": "http://10.0.0.1:3128", "proxy_auth": "me:s3cret"}


async def test_credentials_of_a_proxy_are_not_shown(rig):
    made = await add(rig, connect=PROXIED)
    assert (made["connect"]["proxy"], made["connect"]["proxy_auth"]) == ("http://10.0.0.1:3128", "***")
    assert (await stored(rig)).proxy_auth == "me:s3cret"
    await patch(rig, {"proxy_auth": "***", "proxy": "http://10.0.0.1:3128/"})
    assert (await stored(rig)).proxy_auth == "me:s3cret"
    assert "was given for another" in (await patch(rig, {"proxy": "http://10.0.0.2:3128"}, 422))["detail"]
    await patch(rig, {"proxy": "http://10.0.0.2:3128", "proxy_auth": "me:other"})
    for asked, different in (("me:other", []), ("me:s3cret", ["connect.proxy_auth"])):
        answer = await rig.ask("POST", PATH + "/far:compare", {"connect": {"proxy_auth": asked}})
        assert answer.json() == {"different": different}
    assert "s3cret" not in repr(await rig.trail("acme"))


async def test_only_the_platform_gives_a_proxy_at_any_address(rig):
    key = await rig.key("acme", "tenant:admin")
    for proxy in ("http://10.0.0.1:3128", "http://proxy.example:3128", "https://127.0.0.1"):
        problem = await add(rig, 422, key=key, connect={"proxy": proxy})
        assert "or a platform administrator gives the backend this proxy" in problem["detail"]
    await add(rig, key=key, connect={"proxy": "https://proxy.example"})
    await patch(rig, {"proxy": "http://10.0.0.1:3128"}, 422, key=key)
    await patch(rig, {"proxy": "http://10.0.0.1:3128"})
    assert (await stored(rig)).proxy_is_granted


async def test_a_proxy_of_the_platform_is_for_the_url_that_it_was_given_for(rig):
    """Behind it names mean what the proxy makes of them: an administrator of the tenant does not choose others."""
    key = await rig.key("acme", "tenant:admin")
    await add(rig, url="http://far.corp.example:8080/mcp", connect={"proxy": PROXIED["proxy"]})
    await patch(rig, {}, key=key, url="http://far.corp.example:8080/v2", timeouts={"call_s": 5})
    assert (await stored(rig)).proxy_is_granted
    for url in ("http://payroll.corp.example:8080/", "https://far.corp.example/"):
        await patch(rig, {}, 422, key=key, url=url)
    await patch(rig, {"proxy": "http://10.0.0.2:3128"}, 422, key=key)
    await patch(rig, {}, url="http://other.corp.example/")
    assert (await stored(rig)).proxy_is_granted


async def test_literal_private_addresses_are_not_for_a_proxy(untouched):
    for url in ("https://10.1.2.3/", "https://169.254.169.254/", "http://8.8.8.8/"):
        await add(untouched, 422, url=url, connect=PROXIED)
