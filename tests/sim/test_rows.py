"""Columns grow by rows and come out in the order of the requests' numbers."""

from sim.rows import Rows


def entered(rows, number, tenant, sent_s):
    rows.number.append(number)
    rows.place_of(tenant, "/v1/completions")
    for column in (rows.replica, rows.prompt, rows.output, rows.cached, rows.predicted, rows.available, rows.queue):
        column.append(number)
    for column in (rows.sent_s, rows.first_s, rows.end_s):
        column.append(sent_s)


def outcome(rows):
    return rows.outcome(replicas=1, preemptions=0, duplicated_fraction=None, refused=0, reasons={})


def test_rows_are_sorted_by_number():
    rows = Rows()
    entered(rows, 2, "a", 0.0)
    entered(rows, 0, "b", 1.0)
    entered(rows, 1, "a", 2.0)
    told = outcome(rows)
    assert told.number.tolist() == [0, 1, 2]
    assert told.sent_s.tolist() == [1.0, 2.0, 0.0]
    assert [told.tenants[code] for code in told.tenant] == ["b", "a", "a"]
    assert told.routes == ("/v1/completions",)


def test_the_digest_tells_outcomes_apart():
    def digest(sent_s):
        rows = Rows()
        entered(rows, 0, "a", sent_s)
        return outcome(rows).digest

    assert digest(1.0) == digest(1.0) != digest(1.5)


def test_no_rows_are_empty_columns():
    told = outcome(Rows())
    assert len(told.number) == len(told.end_s) == len(told.replica) == 0
