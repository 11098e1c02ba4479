"""Loaders on small files of each format, with the traps that the real ones have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.protocol.errors import SettingError
from outrider.simulator import traces
from outrider.simulator.links import Steps
from outrider.simulator.traces import (
    KILOBIT,
    MEGABIT,
    mahimahi,
    nyu_mets,
    pitree,
    replay,
    starlink_rates,
    starlink_rtt,
    ucc_5g,
)

NR_HEAD = "t_s,network_mode,dl_kbit_s,ul_kbit_s,ping_avg_ms,ping_min_ms,ping_max_ms,ping_loss\n"
IPERF_HEAD = "t_s,mbit_s,retransmits,tcp_rtt_ms\n"
RECORDINGS = os.environ.get("OUTRIDER_TRACES", "../shared/links")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Give a writer of one file."""

    def write(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(text.encode())
        return path

    return write


Write = Callable[[str], Path]


def megabits(steps: Steps) -> list[float]:
    return [round(value / MEGABIT, 6) for value in steps.values]


class TestMahimahi:
    def test_lines_are_packets(self, write: Write) -> None:
        s = mahimahi(write("0\n0\n19\n20\n100\n"), step=0.02)
        # Three in the first bin, one in the second, and the last belongs before the end.
        assert [round(v * 0.02 / 1500) for v in s.values] == [3, 1, 0, 0, 1]
        assert s.period == 0.1
        assert s.mean == pytest.approx(5 * 1500 / 0.1)
        assert s.at(0.1) == s.at(0.0)  # it loops

    def test_a_last_bin_that_is_shorter(self, write: Write) -> None:
        s = mahimahi(write("5\n50\n"), step=0.02)
        assert s.period == 0.05
        assert s.values[-1] == pytest.approx(1500 / 0.01)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("0\n5\nx\n", "line 3"),
            ("0\n\n1.5\n", "line 3"),
            ("5\n4\n", "line 2"),
            ("-1\n", "line 1"),
            ("", "longer than 0 ms"),
            ("0\n0\n", "longer than 0 ms"),
        ],
    )
    def test_malformed(self, write: Write, text: str, said: str) -> None:
        with pytest.raises(SettingError, match=said):
            mahimahi(write(text))


class TestNyuMets:
    def test_units_are_read_line_by_line(self, write: Write) -> None:
        s = nyu_mets(write("2,Mbits/sec\r\n500,Kbits/sec\r\n0.00,bits/sec\r\n8000,bits/sec\r\n"))
        assert megabits(s) == [2, 0.5, 0, 0.008]
        assert s.period == 4

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("1,Mbits/sec\n2\n", "line 2"),
            ("1,Gbits/sec\n", "line 1"),
            ("x,bits/sec\n", "line 1"),
            ("nan,bits/sec\n", "line 1"),
            ("-1,bits/sec\n", "line 1"),
            ("", "no rate above 0"),
            ("0,bits/sec\n", "no rate above 0"),
        ],
    )
    def test_malformed(self, write: Write, text: str, said: str) -> None:
        with pytest.raises(SettingError, match=said):
            nyu_mets(write(text))


class TestPitree:
    def test_a_line_is_the_end_of_its_rate(self, write: Write) -> None:
        s = pitree(write("0.2 30.5\n0.402 0\n0.6 10\n"))
        assert s.starts == (0, 0.2, 0.402)
        assert megabits(s) == [30.5, 0, 10]
        assert s.period == 0.6

    @pytest.mark.parametrize("text", ["0.2 1\n0.2 2\n", "0.2 1\n0.4\n", "0.2 1\n0.4 -3\n"])
    def test_malformed(self, write: Write, text: str) -> None:
        with pytest.raises(SettingError, match="line 2"):
            pitree(write(text))


class TestStarlink:
    def test_uplink_rows_are_averaged_over_a_second(self, write: Write) -> None:
        rows = "".join(f"{i / 10:.3f},{20.0 if i in (3, 14) else 0.0},0,50\n" for i in range(1, 21))
        s = starlink_rates(write(IPERF_HEAD + rows))
        assert megabits(s) == [2, 2]
        assert s.period == 2

    def test_nothing_is_lost_where_timers_are_late(self, write: Write) -> None:
        times = [0.101, 0.2, 0.301, 0.4, 0.501, 0.6, 0.701, 0.8, 0.901, 1.001]
        s = starlink_rates(write(IPERF_HEAD + "".join(f"{t},4,,\n" for t in times)))
        assert megabits(s) == [4.004]

    def test_lost_pings_are_left_out(self, write: Write) -> None:
        s = starlink_rtt(write("t_s,rtt_ms\n0.000,40\n0.200,-1\n0.400,60.5\n0.600,-1\n"))
        assert s.values == (0.04, 0.0605)
        assert s.starts == (0, 0.4)
        assert s.period == pytest.approx(0.6)
        assert s.at(0.3) == 0.04  # the last one holds

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("t_s,speed\n", "line 1: no column mbit_s"),
            (IPERF_HEAD + "0.1,5,,\n0.2,5\n", "line 3"),
            (IPERF_HEAD + "0.1,5,,\n0.1,5,,\n", "line 3"),
            (IPERF_HEAD + "0.1,fast,,\n", "line 2"),
            (IPERF_HEAD, "no rate above 0"),
        ],
    )
    def test_malformed(self, write: Write, text: str, said: str) -> None:
        with pytest.raises(SettingError, match=said):
            starlink_rates(write(text))

    def test_no_answer_at_all(self, write: Write) -> None:
        with pytest.raises(SettingError, match="no usable rows"):
            starlink_rtt(write("t_s,rtt_ms\n0,-1\n"))


class TestUcc5g:
    def test_repeats_gaps_pauses_and_pings(self, write: Write) -> None:
        session = ucc_5g(
            write(
                NR_HEAD
                + "0,5G,0,9,,,,\n"  # before the first download
                + "1,5G,1000,9,,,,\n"
                + "1,5G,3000,9,80,70,99,0\n"  # the same second: averaged
                + "4,LTE,500,9,,,,\n"  # two seconds are missing
                + "5,LTE,2,9,,,,\n"  # a pause between downloads
                + "6,5G,0,9,60,60,60,5.0\n"
                + "7,5G,0,9,,,,100.0\n"
            )
        )
        assert [session.down.at(t) / KILOBIT for t in (0, 1, 3, 4, 5, 7)] == [
            2000, 2000, 2000, 500, 500, 500,
        ]  # fmt: skip
        assert session.down.period == 8
        assert [session.rtt.at(t) for t in (0, 5, 6, 7.9)] == [0.08, 0.08, 0.06, 0.06]
        assert session.spread == pytest.approx(0.005)
        assert session.ping_loss == pytest.approx(0.025)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (NR_HEAD + "5,5G,1000,9,80,70,99,0\n4,5G,1000,9,,,,\n", "line 3"),
            (NR_HEAD + "5,5G,,9,,,,\n", "line 2"),
            (NR_HEAD + "5,5G,1000,9,80,,,\n", "line 2: ping_min_ms"),
            (NR_HEAD + "5,5G,1000,9,,,,\n", "no usable rows"),  # no ping at all
            (NR_HEAD + "5,5G,1,9,80,70,99,0\n", "no usable rows"),  # no download at all
        ],
    )
    def test_malformed(self, write: Write, text: str, said: str) -> None:
        with pytest.raises(SettingError, match=said):
            ucc_5g(write(text))


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="nowhere: cannot be read"):
            pitree(tmp_path / "nowhere")

    def test_what_is_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "trace"
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SettingError, match="not text"):
            nyu_mets(path)

    def test_a_file_without_end(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traces, "MAX_LINES", 3)
        with pytest.raises(SettingError, match="line 4"):
            mahimahi(write("1\n2\n3\n4\n"))

    def test_an_unknown_replay_lists_the_known(self) -> None:
        with pytest.raises(SettingError, match="wifi, lte, 5g-driving, starlink"):
            replay(".", "carrier-pigeon")


class TestReplay:
    def test_the_suggested_links(self, tmp_path: Path) -> None:
        files = {
            "wifi-zhuge/office-wifi_0.pitree-trace": "0.2 30\n",
            "lte-mahimahi/Verizon-LTE-short.up": "1000\n",
            "lte-mahimahi/Verizon-LTE-short.down": "0\n1000\n",
            "5g-ucc/driving-a.csv": NR_HEAD + "0,5G,10000,9,80,70,99,0\n1,5G,1000,9,,,,\n",
            "starlink-mmsys24/up-bentpipe.csv": IPERF_HEAD + "1,6,0,50\n",
            "starlink-mmsys24/down-bentpipe.csv": IPERF_HEAD + "1,30,,\n",
            "starlink-mmsys24/rtt-gateway-bentpipe.csv": "t_s,rtt_ms\n0,40\n",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        links = {name: replay(tmp_path, name) for name in traces.REPLAYS}
        assert {name: round(link.rtt, 6) for name, link in links.items()} == {
            "wifi": 0.008, "lte": 0.06, "5g-driving": 0.08, "starlink": 0.05,
        }  # fmt: skip
        up = links["5g-driving"].up.rate
        assert isinstance(up, Steps)
        assert megabits(up) == [2, 1]  # a fifth, but at least 1
        assert links["lte"].down.mean_rate == pytest.approx(3000)

    @pytest.mark.skipif(not Path(RECORDINGS).is_dir(), reason="needs the recordings")
    def test_the_recordings_have_the_means_that_were_published(self) -> None:
        found = {name: replay(RECORDINGS, name) for name in traces.REPLAYS}
        means = {
            name: tuple(round((d.mean_rate or 0) / MEGABIT, 2) for d in (link.up, link.down))
            for name, link in found.items()
        }
        assert means["lte"] == (5.95, 5.03)
        assert means["starlink"] == (6.76, 33.3)
        assert 0.05 < found["starlink"].rtt < 0.056
        assert 0.07 < found["5g-driving"].rtt < 0.09
