"""abandon_the_dead: requests that wait for a node whose host has vanished get their error when the node is known to be
dead, and not when TCP gives up."""

import anyio

from app.routing.heartbeat import Heartbeat
from app.routing.peers import PeerClient
from app.routing.routes import BEAT_S, NodeRecord

SUSPECTED_BEATS = 30  # how long a node that has left the list is looked at; connections to it are gone by then


async def abandon_the_dead(heartbeat: Heartbeat, peers: PeerClient) -> None:
    """Each second, until cancelled: whoever has left the list of nodes and does not answer either is dead."""
    known: dict[str, NodeRecord] = {}
    suspects: dict[str, tuple[NodeRecord, int]] = {}
    while True:
        await anyio.sleep(BEAT_S)
        living = dict(heartbeat.peers)
        suspects.update({node: (record, SUSPECTED_BEATS) for node, record in known.items() if node not in living})
        known = living
        for node, (record, beats) in list(suspects.items()):
            del suspects[node]
            if node in living:
                continue
            if await peers.probe(record.url) != node:
                peers.abandon(record.url)
            elif beats:
                suspects[node] = record, beats - 1
