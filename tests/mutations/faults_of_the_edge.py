"""Faults of what strangers can reach before anybody knows them."""

from tests.mutations.fault import Fault

HEADS = ("tests/edge/test_edge_protocol.py", "tests/edge/test_edge_protocol_upgrades.py")
PIPES = ("tests/edge/test_edge_protocol.py",)
READS = ("tests/edge/test_reading.py",)
PLACES = ("tests/edge/test_connections.py",)

FAULTS_OF_THE_EDGE = (
    # --- what one connection may have us keep
    Fault(
        "a request behind another one is read on",
        "app/edge/edge_protocol.py",
        "        if self.pipeline:\n            self.flow.hold()\n",
        "        if self.pipeline:\n",
        PIPES,
    ),
    Fault(
        "more requests may wait than may",
        "app/edge/edge_protocol.py",
        "if len(self.pipeline) > MAX_WAITING:",
        "if len(self.pipeline) > MAX_WAITING + 1:",
        PIPES,
    ),
    Fault(
        "a head has a field more than it may",
        "app/edge/limited_parser.py",
        "        if len(self.headers) > MAX_FIELDS:\n",
        "        if len(self.headers) > MAX_FIELDS + 1:\n",
        HEADS,
    ),
    Fault(
        "a head has no limit in bytes while it arrives",
        "app/edge/limited_parser.py",
        "if self._arrived_bytes > MAX_HEAD_BYTES + PIECE_BYTES:",
        "if False:",
        HEADS,
    ),
    Fault(
        "a URL is a byte longer than it may",
        "app/edge/limited_parser.py",
        "if len(self.url) > MAX_URL_BYTES:",
        "if len(self.url) > MAX_URL_BYTES + 1:",
        HEADS,
    ),
    Fault(
        "trailers have no limit",
        "app/edge/limited_parser.py",
        "if self._trailer_bytes > MAX_TRAILER_BYTES:",
        "if False:",
        HEADS,
    ),
    Fault(
        "chunks may be as small as they are",
        "app/edge/edge_protocol.py",
        "if self._framing_bytes > MAX_FRAMING_BYTES:",
        "if False:",
        PIPES,
    ),
    Fault(
        "the framing of a body has no part of the body",
        "app/edge/edge_protocol.py",
        "len(body) + (len(body) >> FRAMING_SHIFT)",
        "len(body)",
        PIPES,
    ),
    Fault(
        "a body that was answered is read without end",
        "app/edge/edge_protocol.py",
        "if self._unread_bytes > MAX_UNREAD_BYTES:",
        "if False:",
        PIPES,
    ),
    Fault(
        "what a stranger sends is parsed as it comes",
        "app/edge/reading.py",
        "if nbytes <= AT_ONCE_BYTES or protocol.is_let_in:",
        "if True:",
        READS,
    ),
    Fault(
        "a stranger is read on while he stands in line",
        "app/edge/reading.py",
        "self._is_on_hold or self._is_in_line or",
        "self._is_on_hold or",
        READS,
    ),
    Fault(
        "what is read of a stranger who has left is parsed",
        "app/edge/reading.py",
        "self._among.leave_line(self._parse)",
        "pass",
        READS,
    ),
    Fault(
        "requests of strangers who have left stand in line",
        "app/edge/edge_protocol.py",
        "        self._among.leave_line(self._start_in_turn)\n",
        "",
        PIPES,
    ),
    Fault(
        "what is read of a guest who has left is parsed",
        "app/edge/edge_protocol.py",
        "        self._is_over = True  # what stood in line",
        "        # what stood in line",
        PIPES,
    ),
    Fault(
        "a turn that fails holds up all strangers for ever",
        "app/edge/connections.py",
        "        finally:  # one",
        "        except KeyError:  # one",
        PLACES,
    ),
    Fault(
        "who was let in is read like a stranger",
        "app/edge/edge_protocol.py",
        "        self._socket.set_protocol(self)\n",
        "",
        PIPES,
    ),
    Fault(
        "empty lines between requests have no end",
        "app/edge/limited_parser.py",
        "self._stop_parsing(EMPTY_LINES)",
        "self._arrived_bytes = 0",
        PIPES,
    ),
    Fault(
        "what waits is kept when the client has gone",
        "app/edge/edge_protocol.py",
        "        self.pipeline.clear()\n        self._leave()\n        super()",
        "        self._leave()\n        super()",
        PIPES,
    ),
    Fault(
        "a connection that was refused keeps its place",
        "app/edge/connections.py",
        "            self.give_back(counted)\n            return refusal",
        "            return refusal",
        PLACES,
    ),
    Fault(
        "an address has one connection more than it may",
        "app/edge/connections.py",
        "if number >= self.limits.per_address:",
        "if number > self.limits.per_address:",
        PLACES,
    ),
    Fault(
        "there is one connection more than there may be",
        "app/edge/connections.py",
        "if len(self._open) >= self._most:",
        "if len(self._open) > self._most:",
        PLACES,
    ),
    Fault(
        "a client that says whose proxy it is, is believed",
        "app/http/client_address.py",
        "return any(address in network for network in self._networks)",
        "return True",
        ("tests/http/test_client_address.py",),
    ),
    # --- how a head is read
    Fault(
        "codings that nobody here understands are served",
        "app/edge/limited_parser.py",
        'value.rstrip(b" ").lower() != b"chunked"',
        'not value.rstrip(b" ").lower().endswith(b"chunked")',
        HEADS,
    ),
    Fault(
        "the authority of an absolute target is not looked at",
        "app/edge/limited_parser.py",
        'authority if name == b"host" else value',
        "value",
        HEADS,
    ),
    Fault(
        "userinfo passes for a host",
        "app/edge/limited_parser.py",
        "([^]/?#@[]+|",
        "([^]/?#[]+|",
        HEADS,
    ),
    Fault(
        "encoded slashes divide a path",
        "app/transports/front.py",
        'raw_path.count(b"/") != path.count("/") or not path.isprintable()',
        "not path.isprintable()",
        ("tests/integration/test_refusals.py",),
    ),
    Fault(
        "HTTP/2.0 in clear text is answered like 1.1",
        "app/edge/edge_protocol.py",
        'if cycle.scope["http_version"] not in _VERSIONS:',
        "if False:",
        HEADS,
    ),
    Fault(
        "the body behind an offer of another protocol is lost",
        "app/edge/limited_parser.py",
        "            self._parse_behind_offers(memoryview(piece), offer.args[0])",
        "            assert offer.args",
        HEADS,
    ),
    # --- what anybody may ask for
    Fault(
        "each stranger has the database asked for a tenant's issuers",
        "app/http/resource_metadata.py",
        "return servers if until > self._clock() else None",
        "return None",
        ("tests/http/test_resource_metadata.py",),
    ),
    Fault(
        "who asks for many tenants is not slowed",
        "app/http/resource_metadata.py",
        "        self._asked.spend(address)",
        "        assert address",
        ("tests/http/test_resource_metadata.py",),
    ),
)
