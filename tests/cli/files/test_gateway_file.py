"""Files that say what a gateway should have: what is accepted, and what is refused with file and line."""

import json
import re
from pathlib import Path

import pytest

from app.cli.files.gateway_file import read_files
from app.errors import InvalidRequest

ENVIRON = {"TOKEN": "s3cret-value", "IDP": "short-s3cret"}
DOCUMENT = Path(__file__).parents[3] / "docs/files-as-truth.md"


def problems(tmp_path: Path, text: str, name: str = "g.yaml") -> list[str]:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_files([str(tmp_path / name)], ENVIRON)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    return [line.strip().removeprefix(f"{tmp_path}/") for line in str(refused.value).splitlines()[1:]]


def test_every_error_has_its_line_and_says_what_is_wrong(tmp_path):
    text = """tenants:
  acme:
    limit: {sessions: 20}
  BAD: {}
  b:
    limits: {sessions: "20", x: 1}
    reason: gone
    backends:
      time:
        command: mcp server
        wram: 1
        env: {PORT: 80, T: "${env:NOPE}"}
      q: {command: mcp server, env: {PORT: 80}, enabled: yes}
      u: {url: "ftp://x", isolation: "${env:TOKEN}"}
      v: 3
      w: {command: a, timeouts: {call_s: abc}}
      z: {command: a, state: keep, warm: 1}
      named: {name: named}
    recipes:
      r: {toolset: work, steps: [{id: a, tool: 3}, [{id: "1", tool: x, y: 1}]]}
    issuers:
      https://idp: {algorithms: [HS256], secret: "${env:IDP}"}
    guides: [a]
"""
    assert problems(tmp_path, text) == [
        "g.yaml:3: tenants.acme.limit: there is no such member; did you mean `limits`?",
        "g.yaml:4: tenants.BAD: a tenant's name is lower-case letters, digits and hyphens, 63 at most",
        "g.yaml:6: tenants.b.limits.sessions: must be a whole number",
        "g.yaml:6: tenants.b.limits.x: there is no such member",
        "g.yaml:12: tenants.b.backends.time.env.T: the environment variable NOPE is not set",
        (
            "g.yaml:13: tenants.b.backends.q.command: must be one program without its arguments: "
            'write "mcp", and "server" at the beginning of `args`'
        ),
        "g.yaml:13: tenants.b.backends.q.env.PORT: must be a text; write it in quotes",
        "g.yaml:13: tenants.b.backends.q.enabled: must be true or false",
        (
            "g.yaml:14: tenants.b.backends.u.isolation: references stand in `env` and `headers` and `connect` and "
            "`args` and `url` only: everything else is shown to readers"
        ),
        "g.yaml:15: tenants.b.backends.v: a backend has to be an object with members",
        "g.yaml:16: tenants.b.backends.w.timeouts.call_s: must be a number",
        (
            "g.yaml:17: tenants.b.backends.z: `state: keep` needs `warm: 0`: a process is started in the home of its "
            "principal"
        ),
        "g.yaml:18: tenants.b.backends.named.name: the backend is named by its key, 'named'",
        "g.yaml:23: tenants.b.guides: `guides` has to be an object with members",
        "g.yaml:20: tenants.b.recipes.r.steps.0.tool: must be a text; write it in quotes",
        "g.yaml:20: tenants.b.recipes.r.steps.1.0.id: must be letters, digits, `_`, no digit first, 32 at most",
        "g.yaml:20: tenants.b.recipes.r.steps.1.0.y: there is no such member",
        "g.yaml:22: tenants.b.issuers.https://idp.secret: must have 32 bytes or more, and must not be a public key",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file has to be an object"),
        ("[]", "the file has to be an object"),
        ("tenant: {}", "did you mean `tenants`?"),
        ("version: 2", "reads version 1"),
        ("version: true", "reads version 1"),
        ("$schema: 1", "must be a text"),
        ("tenants: 3", "`tenants` has to be an object"),
        ("tenants: {a: {reason: x}}", "a reason goes with `enabled: false`"),
        ("tenants: {a: {limits: {burst: .nan}}}", ".nan is no number"),
        ("tenants: {a: {backends: {b: {command: x, headers: {X-A: '${env:TOKEN}'}}}}}", "can only be given with `url`"),
        ('tenants: {a: {backends: {b: {url: "https://x", headers: {X-A: "${env:TOKEN} "}}}}}', "printable ASCII"),
    ],
)
def test_what_is_refused(tmp_path, text, problem):
    assert any(problem in line for line in problems(tmp_path, text))


def test_a_member_of_a_member_is_not_taken_for_one_of_the_object(tmp_path):
    (problem,) = problems(tmp_path, "tenants: {a: {limits: {sesions: 1}}}")
    assert problem.endswith("tenants.a.limits.sesions: there is no such member")


def test_few_of_many_errors_are_shown(tmp_path):
    found = problems(tmp_path, "tenants:\n" + "".join(f"  A{number}: {{}}\n" for number in range(50)))
    assert (len(found), found[-1]) == (21, "and 30 more")


def test_files_together_are_one(tmp_path):
    (tmp_path / "a.yaml").write_text("tenants: {acme: {limits: {burst: 1}, guides: {g: {text: x}}}}")
    (tmp_path / "b.json").write_text(
        json.dumps({"tenants": {"acme": {"guides": {"h": {"text": "y"}}}, "b": None}}, indent="\t")
    )
    (tmp_path / ".hidden.yaml").write_text("nonsense")
    (tmp_path / "notes.txt").write_text("nonsense")
    acme, other = read_files([str(tmp_path)], {})
    assert (acme.name, sorted(acme.sections["guides"]), other.name, other.sections) == ("acme", ["g", "h"], "b", {})
    with pytest.raises(InvalidRequest, match="given twice"):
        read_files([str(tmp_path), str(tmp_path / "a.yaml")], {})
    (tmp_path / "b.json").write_text('{"tenants": {"acme": {"limits": {}}}}')
    with pytest.raises(InvalidRequest, match="another file has this for the tenant too"):
        read_files([str(tmp_path)], {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match="there is no file"):
        read_files([str(tmp_path / "empty")], {})


def test_secrets_are_in_the_body_and_in_nothing_that_is_shown(tmp_path):
    (tmp_path / "g.yaml").write_text('tenants: {a: {backends: {b: {command: x, env: {T: "${env:TOKEN}"}}}}}')
    (tenant,) = read_files([str(tmp_path / "g.yaml")], ENVIRON)
    wanted = tenant.sections["backends"]["b"]
    assert wanted.body["env"] == {"T": "s3cret-value"}
    assert wanted.shown["env"] == {"T": "***"}
    assert "s3cret" not in repr(tenant)


def test_an_empty_variable_of_a_process_is_one_and_an_empty_header_is_a_mistake(tmp_path):
    file = tmp_path / "g.yaml"
    file.write_text('tenants: {a: {backends: {b: {command: x, env: {T: "${env:EMPTY}"}}}}}')
    (tenant,) = read_files([str(file)], {"EMPTY": ""})
    assert tenant.sections["backends"]["b"].body["env"] == {"T": ""}
    file.write_text('tenants: {a: {backends: {b: {url: "https://x", headers: {T: "${env:EMPTY}"}}}}}')
    with pytest.raises(InvalidRequest, match="EMPTY is not set, or is empty"):
        read_files([str(file)], {"EMPTY": ""})


def test_the_files_of_the_document_are_accepted(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "idp.secret").write_text("x" * 40)
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        assert read_files([str(path)], {"NOTES_TOKEN": "x", "WEATHER_KEY": "x"})


def test_which_files_there_are_is_known_on_the_gateways_machine_only(tmp_path):
    file = tmp_path / "g.yaml"
    file.write_text("tenants: {acme: {backends: {a: {command: /opt/My Server/run}}}}")
    (acme,) = read_files([str(file)], {})
    assert acme.sections["backends"]["a"].shown["command"] == "/opt/My Server/run"
    assert problems(tmp_path, "tenants: {acme: {backends: {a: {command: my server}}}}")


def test_in_other_members_what_looks_like_a_reference_is_escaped(tmp_path):
    file = tmp_path / "g.yaml"
    file.write_text('tenants: {acme: {backends: {a: {command: x, args: ["$${env:A}", "${B}"], rename: {a: b}}}}}')
    (acme,) = read_files([str(file)], {})
    assert acme.sections["backends"]["a"].body["args"] == ["${env:A}", "${B}"]


def test_a_reference_stands_in_arguments_and_addresses_where_a_secret_is_recognised(tmp_path):
    file = tmp_path / "g.yaml"
    file.write_text(
        "tenants: {acme: {backends: {\n"
        '  a: {command: x, args: ["--api-key", "${env:KEY}", "postgres://u:${env:PW}@db/x", "${LEVEL}"]},\n'
        '  b: {url: "https://b.example/mcp?token=${env:KEY}"}}}}'
    )
    (acme,) = read_files([str(file)], {"KEY": "s3cret-1", "PW": "p"})
    a, b = (acme.sections["backends"][name] for name in "ab")
    assert a.body["args"] == ["--api-key", "s3cret-1", "postgres://u:p@db/x", "${LEVEL}"]
    assert a.shown["args"] == ["--api-key", "***", "postgres://u:***@db/x", "${LEVEL}"]
    assert (b.body["url"], b.shown["url"]) == (
        "https://b.example/mcp?token=s3cret-1",
        "https://b.example/mcp?token=***",
    )
    assert "s3cret" not in repr(acme)
    for word in ("--name=${env:KEY}", "${env:KEY}", "x://u:${env:KEY}/a@b/"):
        text = f'tenants:\n  acme:\n    backends:\n      a: {{command: x, args: ["{word}"]}}'
        file.write_text(text)
        with pytest.raises(InvalidRequest, match="what a reference names would be shown there") as refused:
            read_files([str(file)], {"KEY": "s3cret-1"})
        assert "s3cret" not in str(refused.value)
