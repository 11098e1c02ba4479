"""A whole system in virtual time: edges, a verifier, links and trouble, deterministic by its seed.

It runs the real protocol machines and the real engines. What it makes up is the links, the clock,
the cost of work, and the models, which are scripts.
"""

from __future__ import annotations

import random
from functools import partial

from outrider.simulator.agenda import Agenda
from outrider.simulator.cloud import SimCloud
from outrider.simulator.edge import SimEdge
from outrider.simulator.links import Link
from outrider.simulator.lm import ScriptedModels
from outrider.simulator.models import Models
from outrider.simulator.settings import Trouble, WorldSettings
from outrider.simulator.wire import Wire

SETTLE = 120.0
"""Seconds that a world goes on after its last answer, to see that it comes to rest."""


class World:
    """Make it, :meth:`run` it, look at its edges' conversations."""

    def __init__(self, settings: WorldSettings, models: Models | None = None) -> None:
        models = models or ScriptedModels()
        self.settings = settings
        self.agenda = Agenda()
        self._rng = random.Random(settings.seed)
        self.cloud = SimCloud(self.agenda, settings, models)
        self.edges: list[SimEdge] = []
        for edge in settings.edges:
            self.edges.append(
                SimEdge(
                    self.agenda, settings, edge, rng=self._rng, connect=self._connect, models=models
                )
            )
        for trouble in settings.troubles:
            self.agenda.at(trouble.at, partial(self._strike, trouble))

    def _connect(self, edge: SimEdge) -> Wire:
        """A transport from an edge to the verifier; the cloud accepts it with its first byte."""
        settings = self.settings.edges[self.edges.index(edge)]
        link = settings.link
        wire = Wire(self.agenda, link if isinstance(link, Link) else link.link(), self._rng)
        self.cloud.accept(wire)
        return wire

    def _strike(self, trouble: Trouble) -> None:
        if trouble.kind == "restart":
            self.cloud.restart(trouble.notice)
            return
        if trouble.kind == "cap":
            for session in self.cloud.table.sessions.values():
                session.cap = trouble.cap
            return
        edge = self.edges[trouble.edge]
        wire = edge.wire
        if wire is None:
            return  # it is down already
        if trouble.kind == "replace":
            edge.replace()
            wire.up.hold(self.agenda.now + trouble.late)
            self.agenda.at(wire.up.empty_at + trouble.notice, wire.cloud_lost)
            return
        wire.swallow()
        edge_notices = cloud_notices = 0.0
        if trouble.kind == "cloud_first":
            edge_notices = trouble.notice
        elif trouble.kind == "cut":
            cloud_notices = trouble.notice
        else:
            edge_notices = cloud_notices = trouble.notice
        self.agenda.after(cloud_notices, wire.cloud_lost)
        self.agenda.after(edge_notices, wire.edge_lost)

    @property
    def over(self) -> bool:
        """Every user has had all answers."""
        return all(c.over for edge in self.edges for c in edge.conversations)

    @property
    def idle(self) -> bool:
        """Nothing is worked on, waits to be told, or is in flight."""
        return self.cloud.idle and all(edge.idle for edge in self.edges)

    def run(self) -> bool:
        """Until all answers have ended and all is at rest. False: it took too long."""
        settings, agenda = self.settings, self.agenda
        while not self.over:
            if agenda.steps > settings.max_steps or not agenda.step(settings.limit):
                return False
        end = agenda.now + SETTLE
        while not self.idle:
            if agenda.steps > settings.max_steps or not agenda.step(end):
                return False
        return True
