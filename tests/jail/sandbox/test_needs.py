"""What commands need to see: on trees of files made for it."""

import errno
import os
from pathlib import Path

import pytest

from app.jail.sandbox.needs import Needs, NeedsFinder, Wanted, is_broad
from app.jail.spawner.client import SpawnFailed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def program(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def find(*argv: object, path: object = "/usr/bin:/bin", forbidden: tuple[object, ...] = (), **wanted) -> Needs:
    return NeedsFinder(map(str, forbidden)).find(Wanted(tuple(map(str, argv)), str(path), **wanted))


def own(needs: Needs, root: Path) -> set[str]:
    """What it reads below the test's directory, relative to it."""
    return {os.path.relpath(each, root) for each in needs.read if each.startswith(str(root))}


def refused(*argv: object, **more) -> str:
    with pytest.raises(SpawnFailed) as caught:
        find(*argv, **more)
    assert caught.value.stage == "sandbox"
    return caught.value.message


# --- programs


def test_the_system_is_always_there_but_nothing_secret():
    needs = find("true")
    assert "/usr" in needs.read
    assert not {"/", "/etc", "/root", "/home", "/var", "/run", "/etc/shadow"} & set(needs.read)
    if os.path.islink("/bin"):
        assert dict(needs.links)["/bin"] == os.readlink("/bin")


def test_a_program_alone_opens_no_more_than_itself(root):
    tool = program(root / "home" / ".cargo" / "bin" / "tool")
    (root / "home" / ".cargo" / "credentials.toml").touch()
    assert own(find("tool", path=tool.parent), root) == {"home/.cargo/bin/tool"}


def test_every_link_on_the_way_is_kept(root):
    program(root / "store" / "v1" / "tool")
    link(root / "current", "store")
    link(root / "bin" / "tool", "../current/v1/tool")
    needs = find("tool", path=root / "bin")
    assert needs.program == str(root / "bin" / "tool")
    assert own(needs, root) == {"store/v1/tool"}
    assert {(str(root / "bin" / "tool"), "../current/v1/tool"), (str(root / "current"), "store")} <= set(needs.links)


def test_links_in_a_circle_are_no_program(root):
    link(root / "a", "b")
    link(root / "b", "a")
    with pytest.raises(SpawnFailed) as caught:
        find(root / "a")
    assert caught.value.stage == "exec"


@pytest.mark.parametrize(("mode", "number"), [(None, errno.ENOENT), (0o644, errno.EACCES)])
def test_a_program_that_cannot_run_is_reported_as_by_exec(root, mode, number):
    path = root / "tool"
    if mode is not None:
        program(path).chmod(mode)
    with pytest.raises(SpawnFailed) as caught:
        find(path)
    assert (caught.value.errno, caught.value.stage) == (number, "exec")
    assert caught.value.message == f"{os.strerror(number)}: {str(path)!r}"


def test_an_interpreter_opens_its_prefix(root):
    program(root / ".pyenv" / "versions" / "3.12" / "bin" / "python3")
    (root / ".pyenv" / "versions" / "3.12" / "lib" / "python3.12").mkdir(parents=True)
    needs = find(root / ".pyenv" / "versions" / "3.12" / "bin" / "python3")
    assert own(needs, root) == {".pyenv/versions/3.12"}


def test_a_prefix_in_a_home_opens_its_library_only(root):
    home = root / "me"
    (home / ".ssh").mkdir(parents=True)
    program(home / ".local" / "bin" / "python3")
    (home / ".local" / "lib" / "python3.12").mkdir(parents=True)
    (home / ".local" / "share" / "keyrings").mkdir(parents=True)
    needs = find(home / ".local" / "bin" / "python3")
    assert own(needs, root) == {"me/.local/bin/python3", "me/.local/lib/python3.12"}
    program(home / "bin" / "python3")
    (home / "lib" / "python3.12").mkdir(parents=True)
    assert own(find(home / "bin" / "python3"), root) == {"me/bin/python3", "me/lib/python3.12"}


def test_a_virtual_environment_opens_itself_and_the_python_behind_it(root):
    base = program(root / "base" / "bin" / "python3.12")
    (root / "base" / "lib" / "python3.12").mkdir(parents=True)
    (root / "app" / ".venv" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (root / "app" / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.12.1\n")
    link(root / "app" / ".venv" / "bin" / "python", base)
    script = program(root / "app" / ".venv" / "bin" / "server", f"#!{root}/app/.venv/bin/python\n")
    (root / "app" / "secret").touch()
    assert own(find(script), root) == {"app/.venv", "base"}
    assert own(find(root / "app" / ".venv" / "bin" / "python"), root) == {"app/.venv", "base"}


def test_packages_installed_for_development_are_opened(root):
    packages = root / "venv" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (root / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / "project" / "src").mkdir(parents=True)
    (packages / "_project.pth").write_text(f"import something\n{root}/project/src\n/no/such/place\n")
    python = program(root / "venv" / "bin" / "python")
    assert own(find(python), root) == {"venv", "project/src"}


@pytest.mark.parametrize("first", ["#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n", "#!{python} -I\n"])
def test_a_script_names_its_interpreter(root, first):
    python = (
        program(root / "with space" / "bin" / "python3") if "exec" in first else program(root / "p" / "bin" / "python3")
    )
    (python.parent.parent / "lib").mkdir()
    script = program(root / "tools" / "server", first.format(python=python))
    assert own(find(script), root) == {"tools", os.path.relpath(python.parent.parent, root)}


def test_env_looks_for_the_interpreter_in_the_path(root):
    node = program(root / ".nvm" / "versions" / "v20" / "bin" / "node")
    (root / ".nvm" / "versions" / "v20" / "lib" / "node_modules").mkdir(parents=True)
    script = program(root / "server", "#!/usr/bin/env -S A=1 node --no-warnings\n")
    assert own(find(script, path=node.parent), root) == {"server", ".nvm/versions/v20"}


def test_a_global_package_is_found_through_its_link(root):
    prefix = root / "prefix"
    program(prefix / "lib" / "node_modules" / "@x" / "server" / "dist" / "index.js", "#!/usr/bin/env node\n")
    link(prefix / "bin" / "server", "../lib/node_modules/@x/server/dist/index.js")
    needs = find("server", path=f"{prefix / 'bin'}:/usr/bin")
    assert own(needs, root) == {"prefix"}


def test_a_local_package_opens_all_modules_of_the_project_and_not_the_project(root):
    modules = root / "project" / "node_modules"
    program(modules / ".pnpm" / "server@1" / "node_modules" / "server" / "cli.js", "#!/usr/bin/env node\n")
    link(modules / ".bin" / "server", "../.pnpm/server@1/node_modules/server/cli.js")
    (root / "project" / ".env").touch()
    assert own(find(modules / ".bin" / "server"), root) == {"project/node_modules"}


def test_a_shim_opens_the_versions_that_it_chooses_from(root):
    shim = program(root / "me" / ".pyenv" / "shims" / "python3", "#!/bin/sh\n")
    (root / "me" / ".ssh").mkdir()
    assert own(find(shim), root) == {"me/.pyenv"}


# --- arguments and the working directory


def test_files_and_directories_among_the_arguments_are_opened(root):
    (root / "data").mkdir()
    (root / "db.sqlite").touch()
    (root / "other").touch()
    needs = find("true", root / "data", f"--db={root}/db.sqlite", "--flag", "word", "/no/such/place")
    assert own(needs, root) == {"data", "db.sqlite"}


def test_a_script_among_the_arguments_opens_what_it_imports(root):
    (root / "py").mkdir()
    (root / "py" / "server.py").touch()
    (root / "js" / "dist").mkdir(parents=True)
    (root / "js" / "package.json").touch()
    (root / "js" / "dist" / "index.js").touch()
    assert own(find("true", root / "py" / "server.py", root / "js" / "dist" / "index.js"), root) == {"py", "js"}
    (root / "py" / ".ssh").mkdir()  # somebody's home
    assert own(find("true", root / "py" / "server.py"), root) == {"py/server.py"}


@pytest.mark.parametrize("name", ["server.rb", "server.pl", "server.pyw", "server.jar"])
def test_a_script_of_any_language_opens_its_directory(root, name):
    (root / "app").mkdir()
    (root / "app" / name).touch()
    assert own(find("true", root / "app" / name), root) == {"app"}


def test_a_program_with_an_interpreter_opens_what_it_imports_unless_it_lies_among_other_programs(root):
    for place in ("app", "bin"):
        program(root / place / "server", "#!/usr/bin/env python3\n")
    assert own(find(root / "app" / "server"), root) == {"app"}
    assert own(find(root / "bin" / "server"), root) == {"bin/server"}
    program(root / "shell" / "server", "#!/bin/sh\n")
    assert own(find(root / "shell" / "server"), root) == {"shell/server"}


def test_what_an_interpreter_is_to_run_is_a_script_whatever_its_name_and_its_arguments_are_not(root):
    for name in ("app/server", "data/secret"):
        (root / name).parent.mkdir()
        (root / name).touch()
    needs = find("python3", "-u", root / "app" / "server", root / "data" / "secret")
    assert own(needs, root) == {"app", "data/secret"}
    assert own(find("python3", "-c", root / "app" / "server"), root) == {"app/server"}


def test_a_script_of_node_opens_the_modules_above_it(root):
    script = root / "repository" / "packages" / "server" / "index.js"
    script.parent.mkdir(parents=True)
    script.touch()
    (script.parent / "package.json").touch()
    (root / "repository" / "node_modules").mkdir()
    link(root / "node_modules", "/etc")
    assert own(find("true", script), root) == {"repository/packages/server", "repository/node_modules"}


def test_a_script_that_a_process_may_write_opens_nothing_beside_it(root):
    (root / "mine").mkdir()
    program(root / "mine" / "server.py", "#!/usr/bin/python3\n")
    (root / "node_modules").mkdir()
    program(root / "mine" / "server.js", "#!/usr/bin/python3\n")
    for name in ("server.py", "server.js"):
        assert own(find(root / "mine" / name, write=(str(root / "mine" / name),)), root) == set()


def test_the_working_directory_is_opened_unless_it_is_a_home(root):
    (root / "project").mkdir()
    (root / "project" / "bin").mkdir()
    program(root / "project" / "bin" / "tool")
    needs = find("bin/tool", cwd=str(root / "project"))
    assert (own(needs, root), needs.program) == ({"project"}, str(root / "project" / "bin" / "tool"))
    (root / "project" / ".ssh").mkdir()
    assert own(find("true", cwd=str(root / "project")), root) == set()


def test_the_sandbox_own_directories_are_no_reason_to_refuse():
    assert find("true", "/", "/tmp", "/dev/null") == find("true")


@pytest.mark.parametrize("path", ["/etc/shadow", "/proc/1/environ", "/sys/kernel", "/dev/kmsg", "/etc/../etc/shadow"])
def test_secrets_of_the_machine_are_refused_by_name(path):
    if not os.path.exists(path):
        pytest.skip(f"there is no {path}")
    assert path in refused("true", path)


def test_a_directory_with_secrets_of_the_machine_cannot_be_declared():
    if not os.path.exists("/etc/shadow"):
        pytest.skip("there is no /etc/shadow")
    assert "contains '/etc/" in refused("true", read=("/etc",))
    assert "contains '/etc/" in refused("true", write=("/etc",))


def test_what_is_forbidden_wins(root):
    secret = root / "data"
    (secret / "homes").mkdir(parents=True)
    (secret / "trunkline.db").touch()
    message = refused("true", secret / "trunkline.db", forbidden=(secret,))
    assert message == f"the argument {str(secret / 'trunkline.db')!r} is in {str(secret)!r}, which no sandbox opens"
    assert "contains" in refused("true", root, forbidden=(secret,))
    assert "the working directory" in refused("true", cwd=str(secret / "homes"), forbidden=(secret,))
    assert "sandbox.read" in refused("true", read=(str(secret),), forbidden=(secret,))
    assert "sandbox.write" in refused("true", write=(str(root),), forbidden=(secret,))
    assert "the program" in refused(program(secret / "tool"), forbidden=(secret,))


def test_a_link_does_not_lead_to_what_is_forbidden(root):
    (root / "data").mkdir()
    (root / "data" / "key").touch()
    link(root / "harmless", root / "data")
    assert "no sandbox opens" in refused("true", root / "harmless" / "key", forbidden=(root / "data",))
    link(root / "alias", root / "data")
    assert "no sandbox opens" in refused("true", root / "data" / "key", forbidden=(root / "alias",))


def test_a_home_is_refused_unless_it_is_declared(root):
    (root / ".ssh").mkdir()
    assert "is too much to open" in refused("true", root)
    assert own(find("true", root, read=(str(root),)), root) == {"."}


def test_what_is_declared_must_exist(root):
    assert f"there is no {str(root / 'x')!r}" in refused("true", read=(str(root / "x"),))


def test_what_may_be_written_is_not_opened_twice(root):
    (root / "out" / "in").mkdir(parents=True)
    needs = find("true", root / "out" / "in", write=(str(root / "out"), str(root / "out" / "in")))
    assert (needs.write, own(needs, root)) == ((str(root / "out"),), set())


def test_homes_are_too_broad(root):
    assert is_broad("/root")
    assert is_broad("/")
    assert not is_broad(str(root))
    (root / ".bashrc").touch()
    assert is_broad(str(root))


# --- remembering


def test_what_was_found_is_remembered_for_a_while_and_bounded(root):
    now = 0.0
    finder = NeedsFinder([], clock=lambda: now)
    tool = program(root / "tool")
    wanted = Wanted((str(tool),), "/usr/bin")
    found = finder.find(wanted)
    tool.unlink()
    assert finder.find(wanted) is found
    now = 10.0
    with pytest.raises(SpawnFailed):
        finder.find(wanted)
    for number in range(300):
        finder.find(Wanted(("true", str(number)), "/usr/bin:/bin"))
    assert len(finder._known) <= 256


def test_a_directory_that_was_replaced_by_a_link_since_it_was_found_is_looked_up_anew(root):
    secret, shared = root / "data", root / "shared"
    (shared / "reports").mkdir(parents=True)
    secret.mkdir()
    finder = NeedsFinder((str(secret),))
    wanted = Wanted(("true",), "/usr/bin:/bin", read=(str(shared / "reports"),))
    assert str(shared / "reports") in finder.find(wanted).read
    (shared / "reports").rename(shared / "old")
    (shared / "reports").symlink_to(secret)
    with pytest.raises(SpawnFailed, match="which no sandbox opens"):
        finder.find(wanted)


# --- what a process may write, and what it makes of that


@pytest.fixture
def elsewhere(root: Path) -> Path:
    (root / "elsewhere" / "bin").mkdir(parents=True)
    (root / "elsewhere" / "lib").mkdir()
    program(root / "elsewhere" / "bin" / "tool")
    (root / "mine").mkdir()
    return root / "elsewhere"


def test_a_link_in_what_a_process_may_write_opens_nothing_else_to_it(root, elsewhere):
    mine, made = str(root / "mine"), link(root / "mine" / "link", elsewhere)
    tool = link(root / "mine" / "tool", elsewhere / "bin" / "tool")
    for argv, wanted in (
        (("true", made), {"write": (mine,)}),
        (("true",), {"write": (mine,), "cwd": str(made)}),
        ((tool,), {"write": (mine,)}),
        (("true",), {"write": (mine, str(made))}),
        (("true",), {"write": (mine,), "read": (str(made),)}),
    ):
        assert "by the link" in refused(*argv, **wanted), (argv, wanted)


def test_a_link_upwards_is_no_way_around(root, elsewhere):
    made = link(root / "mine" / "up", root)
    assert "by the link" in refused("true", write=(str(root / "mine"), str(made)))


def test_links_to_what_is_declared_and_within_what_is_written_work(root, elsewhere):
    mine, made = str(root / "mine"), link(root / "mine" / "link", elsewhere)
    assert own(find("true", made, write=(mine,), read=(str(elsewhere),)), root) == {"elsewhere"}
    (root / "mine" / "a").mkdir()
    assert own(find("true", link(root / "mine" / "b", "a"), write=(mine,)), root) == set()


def test_files_that_a_process_may_write_name_nothing_else_for_it(root, elsewhere):
    mine = root / "mine"
    packages = mine / "venv" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "x.pth").write_text(f"{elsewhere}\n")
    (mine / "venv" / "pyvenv.cfg").write_text(f"home = {elsewhere}/bin\n")
    link(elsewhere / "bin" / "python3", "tool")
    link(mine / "bad" / "lib" / "python3.12", elsewhere)
    (mine / "bad" / ".profile").touch()
    link(mine / "bad" / "bin" / "python3", "../../python3")
    program(mine / "python3")
    programs = [program(mine / "venv" / "bin" / "python3"), mine / "bad" / "bin" / "python3"]
    programs.append(program(mine / "server", f"#!{elsewhere}/bin/tool\n"))
    for each in programs:
        assert own(find(each, write=(str(mine),)), root) == set(), each


# --- what is declared, alone


def test_what_is_declared_is_found_without_links_for_who_sees_nothing_else(root):
    (root / "a").mkdir()
    link(root / "to-a", "a")
    finder = NeedsFinder([str(root / "data")])
    found = finder.opened((str(root / "to-a"),), (str(root / "a"),))
    assert found == {str(root / "to-a"): str(root / "a"), str(root / "a"): str(root / "a")}
    assert finder.opened((), ()) == {}


def test_what_is_declared_alone_is_refused_as_for_any_sandbox(root):
    (root / "data").mkdir()
    link(root / "to-data", "data")
    finder = NeedsFinder([str(root / "data")])
    refused = {"data": "no sandbox opens", "to-data": "no sandbox opens", "x": "there is no", "": "contains"}
    for path, why in refused.items():
        with pytest.raises(SpawnFailed, match=why):
            finder.opened((), (str(root / path),))
