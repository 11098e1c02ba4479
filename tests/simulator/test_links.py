"""Pipes with invented numbers: the arithmetic, and what holds whatever the numbers are."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.protocol.errors import SettingError
from outrider.simulator.links import (
    OVERHEAD,
    PACKET,
    Background,
    Direction,
    Flow,
    Link,
    Pipe,
    Steps,
)


def pipe(seed: int = 0, start: float = 0.0, **fields: object) -> Pipe:
    """A pipe without packet headers, unless told otherwise: bytes are what they seem."""
    direction = Direction(**{"overhead": 0, **fields})  # type: ignore[arg-type]
    return Pipe(direction, random.Random(seed), start)


steps = st.lists(
    st.tuples(st.floats(0.01, 5), st.sampled_from((0.0, 1.0, 250.0, 1e6))), min_size=1, max_size=8
).map(
    lambda parts: Steps(
        [sum(d for d, _ in parts[:i]) for i in range(len(parts))],
        [v for _, v in parts],
        sum(d for d, _ in parts),
    )
)
rates = st.one_of(st.none(), st.floats(100, 1e7), steps.filter(lambda s: s.mean > 1))
directions = st.builds(
    Direction,
    rate=rates,
    burst=st.sampled_from((0.0, 500.0, 5000.0)),
    delay=st.one_of(st.floats(0, 1), steps.map(lambda s: s.scaled(1e-6))),
    jitter=st.sampled_from((0.0, 0.001, 0.2)),
    loss=st.sampled_from((0.0, 0.3)),
    stall=st.just(0.5),
    queue=st.sampled_from((1500, 65_536)),
    queue_seconds=st.sampled_from((None, 0.1, 2.0)),
    background=st.sampled_from((None, Background(), Background(share=0.9, standing=3.0))),
)
sends = st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), min_size=1, max_size=30)


class TestSteps:
    def test_a_value_holds_until_the_next_and_the_end_joins_the_beginning(self) -> None:
        s = Steps((0, 1, 3), (5.0, 0.0, 2.0), 4)
        assert [s.at(t) for t in (0, 0.9, 1, 2.9, 3, 3.9, 4, 5, 8.5)] == [5, 5, 0, 0, 2, 2, 5, 0, 5]
        assert s.mean == 7 / 4
        assert s.sum_to(2) == 5
        assert s.sum_to(4.5) == 9.5
        assert s.sum_to(-0.5) == -1

    def test_when_is_the_first_time_that_a_sum_is_reached(self) -> None:
        s = Steps((0, 1, 3), (5.0, 0.0, 2.0), 4)
        assert s.when(5) == 1  # not 3, though the sum is 5 there as well
        assert s.when(6) == 3.5
        assert s.when(7) == 4
        assert s.when(14) == 8
        assert s.when(9.5) == 4.5

    @settings(max_examples=50)
    @given(s=steps.filter(lambda s: s.mean > 0), target=st.floats(0, 1e7))
    def test_when_undoes_the_sum(self, s: Steps, target: float) -> None:
        time = s.when(target)
        assert s.sum_to(time) == pytest.approx(target, abs=1e-3, rel=1e-6)

    def test_scaled_has_a_floor(self) -> None:
        assert Steps.every(1, [0, 10, 20]).scaled(0.5, offset=1, floor=4).values == (4, 6, 11)

    @pytest.mark.parametrize(
        ("starts", "values", "period"),
        [
            ((), (), 1),
            ((0,), (1, 2), 1),
            ((1,), (1,), 2),
            ((0, 0), (1, 2), 1),
            ((0, 2), (1, 2), 2),
            ((0,), (-1,), 1),
            ((0,), (math.nan,), 1),
            ((0,), (1,), math.inf),
        ],
    )
    def test_nonsense_is_refused(
        self, starts: tuple[float, ...], values: tuple[float, ...], period: float
    ) -> None:
        with pytest.raises(SettingError):
            Steps(starts, values, period)


class TestArithmetic:
    def test_a_message_takes_its_bytes_over_the_rate_plus_the_delay(self) -> None:
        p = pipe(rate=1000.0, delay=0.25)
        assert p.deliver_at(500, 1.0) == pytest.approx(1.75)
        assert p.deliver_at(500, 1.0) == pytest.approx(2.25)  # it waits for the first
        assert p.deliver_at(100, 9.0) == pytest.approx(9.35)  # idle time is not saved up

    def test_no_limit_means_delay_alone(self) -> None:
        p = pipe(delay=0.01)
        assert [p.deliver_at(10**9, t) for t in (0.0, 0.0, 5.0)] == [0.01, 0.01, 5.01]
        assert p.backlog(0.0) == 0
        assert p.offer(10**9, 3.0) == 3.0

    def test_headers_are_paid_for_each_packet(self) -> None:
        d = Direction(rate=1000.0)
        assert d.packets(PACKET - OVERHEAD) == 1
        assert d.packets(PACKET - OVERHEAD + 1) == 2
        assert d.on_wire(10) == 10 + OVERHEAD
        assert d.on_wire(2852) == 3000
        assert Pipe(d, random.Random(0)).deliver_at(2852, 0.0) == pytest.approx(3.0)

    def test_a_burst_leaves_at_once_and_is_earned_back_at_the_rate(self) -> None:
        p = pipe(rate=100.0, burst=300.0)
        assert p.deliver_at(300, 0.0) == 0.0
        assert p.deliver_at(100, 0.0) == pytest.approx(1.0)
        assert p.deliver_at(100, 2.0) == pytest.approx(2.0)  # one second earned one hundred
        assert p.deliver_at(100, 2.0) == pytest.approx(3.0)
        assert p.deliver_at(300, 100.0) == 100.0  # no more than the burst is ever saved
        assert p.deliver_at(100, 100.0) == pytest.approx(101.0)

    def test_a_rate_over_time_and_its_gaps(self) -> None:
        p = pipe(rate=Steps((0, 1, 3), (100.0, 0.0, 50.0), 4))
        assert p.deliver_at(150, 0.0) == pytest.approx(4.0)  # 100, nothing for 2 s, then 50
        assert p.deliver_at(60, 4.0) == pytest.approx(4.6)

    def test_courses_begin_at_the_start(self) -> None:
        p = pipe(start=1e6, rate=Steps((0, 1), (10.0, 1000.0), 2), delay=Steps((0, 1), (5, 6), 2))
        assert p.deliver_at(10, 1e6) == pytest.approx(1e6 + 1 + 6)
        p.begin(2e6)
        assert p.deliver_at(5, 2e6) == pytest.approx(2e6 + 0.5 + 5)

    def test_delay_that_falls_overtakes_nothing(self) -> None:
        p = pipe(delay=Steps((0, 1), (3.0, 0.5), 100))
        assert p.deliver_at(1, 0.0) == 3.0
        assert p.deliver_at(1, 1.0) == 3.0
        assert p.deliver_at(1, 5.0) == 5.5

    def test_loss_delays_all_behind_it_of_the_same_flow(self) -> None:
        p = pipe(loss=0.999999, stall=0.4, delay=0.1)
        lossy, other = Flow(), Flow()
        assert p.deliver_at(1, 0.0, lossy) == 0.5
        assert p.losses == 1
        p.direction = Direction(delay=0.1, overhead=0)
        assert p.deliver_at(1, 0.1, lossy) == 0.5
        assert p.deliver_at(1, 0.1, other) == pytest.approx(0.2)

    def test_losses_are_as_frequent_as_told_by_packet(self) -> None:
        p = pipe(loss=0.1, stall=1.0)
        for i in range(2000):
            p.deliver_at(4500, i * 10.0)
        assert p.losses == pytest.approx(2000 * (1 - 0.9**3), rel=0.1)

    def test_what_else_is_sent_changes_nobodys_luck(self) -> None:
        """Strategies that send more or less on one seed are compared in the same weather."""
        quiet, busy = (pipe(loss=0.2, jitter=0.01, stall=1.0) for _ in range(2))
        mine, other = Flow(), Flow()
        for i in range(500):
            if i % 3:
                busy.deliver_at(10, i * 10.0 - 5.0, other)
            assert quiet.deliver_at(10, i * 10.0, mine) == busy.deliver_at(10, i * 10.0)
        assert busy.losses > quiet.losses > 50

    def test_jitter_is_exponential_with_its_mean(self) -> None:
        p = pipe(jitter=0.02, delay=1.0)
        extra = [p.deliver_at(1, i * 2.0) - i * 2.0 - 1.0 for i in range(4000)]
        assert sum(extra) / len(extra) == pytest.approx(0.02, rel=0.1)
        assert sum(x > 0.04 for x in extra) / len(extra) == pytest.approx(math.exp(-2), rel=0.2)

    def test_a_background_takes_its_share_and_keeps_its_queue(self) -> None:
        b = Background(share=0.75, standing=1.0, floor=0.5, period=10)
        p = pipe(rate=1000.0, delay=0.1, background=b)
        assert p.deliver_at(250, 0.0) == pytest.approx(1.0 + 0.1 + 0.5 + 0.05)
        assert [b.wait(t) for t in (0, 5, 10)] == [0.5, 0.75, 0.5]
        assert p.direction.mean_delay == pytest.approx(0.1 + b.mean_wait)

    def test_hold_and_change(self) -> None:
        p = pipe(rate=100.0, delay=1.0)
        assert p.deliver_at(200, 0.0) == 3.0
        p.change(Direction(rate=1000.0, overhead=0), 1.0)
        assert p.backlog(1.0) == pytest.approx(100)
        assert p.deliver_at(100, 1.0) == 3.0  # sent by 1.2, but the first is on its way still
        p.hold(9.0)
        assert p.deliver_at(1, 4.0) == 9.0
        p.change(Direction(), 5.0)
        assert p.deliver_at(10**6, 10.0) == 10.0

    def test_a_link_knows_its_round_trip(self) -> None:
        up, down = Direction(delay=0.01, jitter=0.002), Direction(delay=Steps.every(1, (0.1, 0.3)))
        assert Link(name="x", up=up, down=down).rtt == pytest.approx(0.212)


class TestBackpressure:
    def test_a_sender_waits_until_there_is_room(self) -> None:
        p = pipe(rate=1000.0, queue=2000)
        assert p.room(0.0) == 2000
        assert p.offer(2000, 0.0) == 0.0
        p.deliver_at(2000, 0.0)
        assert p.room(0.0) == 0
        assert p.room(0.5) == 500
        assert p.offer(500, 0.0) == pytest.approx(0.5)
        assert p.offer(5000, 0.0) == pytest.approx(2.0)  # larger than the queue: when it is empty

    def test_a_queue_in_seconds(self) -> None:
        p = pipe(rate=2000.0, queue_seconds=1.0)
        p.deliver_at(2000, 0.0)
        assert p.offer(400, 0.0) == pytest.approx(0.2)
        assert p.room(0.25) == 500

    def test_an_empty_queue_takes_a_packet_however_slow_the_link(self) -> None:
        p = pipe(rate=10.0, queue_seconds=1.0, overhead=74)
        assert p.room(0.0) == 1426
        assert p.offer(1426, 0.0) == 0.0

    @settings(max_examples=50)
    @given(direction=directions, sends=sends)
    def test_the_queue_keeps_its_bound(
        self, direction: Direction, sends: list[tuple[int, float]]
    ) -> None:
        p = Pipe(direction, random.Random(1))
        now = 0.0
        for size, pause in sends:
            now = max(now + pause, p.offer(size, now + pause))
            p.deliver_at(size, now)
            largest = max(direction.queue, direction.on_wire(size))
            assert p.backlog(now) <= largest * (1 + 1e-6) + 0.01
            room = p.room(now)
            if room and direction.rate is not None:
                allowed = max(direction.queue, PACKET) - p.backlog(now)
                assert direction.on_wire(room) <= allowed + 1


class TestWhateverTheNumbers:
    @settings(max_examples=50)
    @given(direction=directions, sends=sends, seed=st.integers(0, 99))
    def test_nothing_overtakes_and_nothing_comes_early(
        self, direction: Direction, sends: list[tuple[int, float]], seed: int
    ) -> None:
        p = Pipe(direction, random.Random(seed))
        now, arrivals = 0.0, []
        for size, pause in sends:
            now += pause
            arrivals.append(p.deliver_at(size, now))
            assert arrivals[-1] >= now
        assert all(a <= b for a, b in pairwise(arrivals))
        assert p.bytes_in == sum(size for size, _ in sends)

    @settings(max_examples=50)
    @given(direction=directions, sends=sends, seed=st.integers(0, 99))
    def test_a_seed_is_a_course(
        self, direction: Direction, sends: list[tuple[int, float]], seed: int
    ) -> None:
        first, second = (Pipe(direction, random.Random(seed)) for _ in range(2))
        now = 0.0
        for size, pause in sends:
            now += pause
            assert first.deliver_at(size, now) == second.deliver_at(size, now)

    @settings(max_examples=50)
    @given(rate=st.floats(100, 1e6), burst=st.floats(0, 3000), sends=sends)
    def test_no_more_leaves_than_the_rate_and_the_burst_allow(
        self, rate: float, burst: float, sends: list[tuple[int, float]]
    ) -> None:
        p = pipe(rate=rate, burst=burst)
        now, left, carried = 0.0, [], 0
        for size, pause in sends:
            now += pause
            carried += size
            left.append((p.deliver_at(size, now), carried))
        for sent, carried in left:
            assert carried <= rate * sent + burst + 1e-3

    def test_weather_is_the_same_whatever_is_sent(self) -> None:
        few, many = pipe(jitter=0.05), pipe(jitter=0.05)
        for i in range(99):
            many.deliver_at(10, i * 0.1, Flow())
        assert few.deliver_at(10, 9.905, Flow()) == many.deliver_at(10, 9.905, Flow())


@pytest.mark.parametrize(
    "fields",
    [
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": math.nan},
        {"rate": Steps.every(1, (0.0,))},
        {"burst": -1},
        {"delay": -0.1},
        {"jitter": math.inf},
        {"loss": 1.0},
        {"stall": -1},
        {"queue": 100},
        {"queue_seconds": 0},
        {"overhead": PACKET},
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(fields))):
        Direction(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"share": 1.0}, {"floor": 2}, {"standing": -1}, {"period": 0}])
def test_a_background_that_makes_no_sense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        Background(**fields)
