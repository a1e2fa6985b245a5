"""Where the gateway is root each tenant has a user of its own on the machine: what administrators are told about it."""

import os

import pytest

from tests.integration.gateway import Gateway
from tests.jail.sandbox.inside import IS_ROOT, SYSTEM_PYTHON, needs_bubblewrap, open_directory

pytestmark = [needs_bubblewrap, pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")]

WRITES = "import sys; open(sys.argv[1] + '/db', 'w')"


def test_a_check_names_what_modes_keep_from_the_user_that_the_list_of_homes_shows(gateway: Gateway) -> None:
    with open_directory() as notes:
        endpoint = gateway.endpoint([SYSTEM_PYTHON, "-c", WRITES, str(notes)], sandbox={"write": [str(notes)]})
        path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check"
        check = gateway.api("POST", path)
        (uid,) = (each["uid"] for each in gateway.cli("homes") if each["tenant"] == endpoint.tenant)
        assert 60000 <= uid <= 64999
        (missed,) = check["missed"]
        assert missed == {
            "kind": "file", "what": str(notes), "access": "write", "count": 1, "proposal": None, "uid": uid,
            "note": None, "granted_by": None, "may_grant": False,
        }  # fmt: skip
        assert f"the user {uid}, who may not write {notes}" in check["failure"]["hint"]
        os.chown(notes, uid, uid)
        assert not [each for each in gateway.api("POST", path)["missed"] if each["uid"] is not None]
        assert (notes / "db").exists()
