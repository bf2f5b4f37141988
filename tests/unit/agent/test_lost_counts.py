"""Loss that is found while a plan is cut: the exporter counts it, once, when it is finished."""

from __future__ import annotations

from pathlib import Path

from support.agents.exports import bench, rows


def test_epochs_that_are_gone_at_the_home_are_counted_as_lost_too(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.route()
        for batch in range(3):
            made.publish(batch, rows(10 * batch, 10))
        made.plan(lease=1.0)
        made.limit(max_bytes=1, grace=10)
        made.now += 100
        made.export.tick()
        again = made.replan({made.stream: (0, 3)}, skip_lost=True)
        assert again.missing == {made.stream: [(0, 2, 20)]}
        made.reopen()
        assert made.replan({made.stream: (0, 3)}, skip_lost=True).missing == again.missing
        for _ in range(2):
            made.plan({made.stream: 3}, skip_lost=True)
            reported = made.export.status()["readers"]["reader"]
            assert (reported["delivered"], reported["lost"]) == (10, [2, 20])


def test_a_stream_that_the_home_does_not_know_is_counted_by_its_epochs(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.route()
        made.publish(0, rows(0, 5))
        assert made.replan({"old": (2, 5)}, skip_lost=True).missing == {"old": [(2, 5, None)]}
        made.reopen()
        made.plan({"old": 4}, skip_lost=True)
        assert made.export.status()["readers"]["reader"]["lost"] == [0, 0]
        for _ in range(2):
            made.plan({"old": 5}, skip_lost=True)
            assert made.export.status()["readers"]["reader"]["lost"] == [3, 0]


def test_what_was_read_and_removed_before_the_reader_said_so_is_delivered(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.route()
        for batch in range(4):
            made.publish(batch, rows(10 * batch, 10 + batch))
        made.plan({made.stream: 1}, lease=1.0, filter_="n >= 0")
        made.limit(max_bytes=1, grace=10)
        made.now += 100
        made.export.tick()
        assert sorted(made.export.state.streams[made.stream].manifests) == [3]
        made.plan({made.stream: 4}, filter_="n >= 0")
        reported = made.export.status()["readers"]["reader"]
        assert (reported["delivered"], reported["filtered"], reported["lost"]) == (
            11 + 12 + 13,
            0,
            [0, 0],
        )


def test_what_was_delivered_before_a_checkpoint_was_restored_is_not_dropped(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.route("drop")
        for batch in range(4):
            made.publish(batch, rows(10 * batch, 4 + batch))
        made.plan()
        made.plan({made.stream: 4})
        made.limit(max_bytes=1, grace=10)
        for batch in (4, 5):
            made.publish(batch, rows(10 * batch, 4 + batch))
        for _ in range(2):
            made.plan({made.stream: 0})
            made.plan({made.stream: 6})
            reported = made.export.status()["readers"]["reader"]
            assert (reported["delivered"], reported["dropped"]) == (4 + 5 + 6 + 7 + 9, [1, 8])
            assert (
                sum((reported["delivered"], reported["dropped"][1]))
                == made.export.epochs.published_rows
            )
