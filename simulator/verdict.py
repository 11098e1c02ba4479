"""What must be true of a world that has run: the same text as the target alone, and no more."""

from __future__ import annotations

from outrider.cloud_server.replay import plain
from outrider.simulator.cloud import token_bytes
from outrider.simulator.edge import Answer, Conversation
from outrider.simulator.lm import RememberedTarget
from outrider.simulator.settings import Turn, WorldSettings
from outrider.simulator.world import World


def judge_world(settings: WorldSettings) -> list[str]:
    """Run a world and say everything that is wrong with it; empty if nothing is."""
    world = World(settings)
    try:
        finished = world.run()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return judge(world, finished)


def judge(world: World, finished: bool) -> list[str]:
    """Everything that is wrong with a world after its run."""
    wrong = [] if finished else [f"stuck at {world.agenda.now:.3f} s"]
    target = RememberedTarget(world.settings)
    for i, edge in enumerate(world.edges):
        wrong += [f"edge {i}: {failure}" for failure in edge.failures]
        for j, conversation in enumerate(edge.conversations):
            for k, answer in enumerate(conversation.answers):
                where = f"edge {i} user {j} answer {k}: "
                wrong += [where + fault for fault in _answer(answer, target, world.settings)]
            if finished:
                wrong += [f"edge {i} user {j}: {f}" for f in _ends_agree(world, conversation)]
    return wrong


def _answer(answer: Answer, target: RememberedTarget, settings: WorldSettings) -> list[str]:
    wrong = list(answer.faults)
    if not 0 < len(answer.prompt) < settings.n_ctx:
        return wrong + _refusal(answer)
    expected, reason, text_bytes = expected_answer(answer, target, settings)
    if len(answer.ends) != 1:
        wrong.append(f"ended {len(answer.ends)} times")
    ended = answer.ends[-1] if answer.ends else "cancel"
    if ended == "cancel":  # it was stopped somewhere on the way
        if answer.tokens != expected[: len(answer.tokens)]:
            wrong.append(f"{answer.tokens} is not the beginning of {expected}")
        return wrong
    if answer.tokens != expected:
        wrong.append(f"{answer.tokens} instead of {expected}")
    if ended != reason:
        wrong.append(f"ended with {ended!r} instead of {reason!r}")
    kept = len(_text(answer.tokens)) if answer.text_bytes is None else answer.text_bytes
    if answer.tokens == expected and kept != text_bytes:
        wrong.append(f"{kept} bytes of text instead of {text_bytes}")
    return wrong


def _refusal(answer: Answer) -> list[str]:
    """A prompt that fills the context cannot be answered; it may be cancelled before that."""
    if answer.ends in (["refused: prompt_too_long"], ["cancel"]) and not answer.tokens:
        return []
    return [f"a prompt of {len(answer.prompt)} ids ended with {answer.ends}, {answer.tokens}"]


def expected_answer(
    answer: Answer, target: RememberedTarget, settings: WorldSettings
) -> tuple[list[int], str, int]:
    """What the target alone answers: tokens, why it ends, bytes of text."""
    turn = answer.turn
    eos = frozenset() if turn.ignore_eos else settings.eos
    tokens = plain(
        target,
        answer.prompt,
        turn.sampling,
        min(turn.max_tokens, settings.n_ctx - len(answer.prompt)),
        lambda output: output[-1] in eos or _stop_at(output, turn) is not None,
    )
    if tokens[-1] in eos:  # it has no text, so it cannot complete a stop string
        return tokens, "stop", len(_text(tokens[:-1]))
    cut = _stop_at(tokens, turn)
    if cut is not None:
        return tokens, "stop", cut
    return tokens, "length", len(_text(tokens))


def _stop_at(tokens: list[int], turn: Turn) -> int | None:
    """Where the text is cut for a stop string that has just become complete: the longest."""
    text = _text(tokens)
    found = [len(text) - len(stop) for stop in turn.stops if text.endswith(stop.encode())]
    return min(found, default=None)


def _text(tokens: list[int]) -> bytes:
    return b"".join(map(token_bytes, tokens))


def _ends_agree(world: World, conversation: Conversation) -> list[str]:
    """At rest the cloud holds at least what the edge holds, or nothing, and no answer runs on."""
    session = conversation.session
    other = world.cloud.table.sessions.get(session.key)
    if other is None or not conversation.answers:
        return []
    wrong = []
    if other.answer == session.answer and other.ids[: len(session.ids)] != session.ids:
        wrong.append(f"the edge holds {session.ids}, the cloud {other.ids}")
    ended = conversation.answers[-1].ends[-1]
    if other.answer == session.answer and ended != "cancel" and other.ids != session.ids:
        wrong.append("the ends differ in length")
    return wrong
